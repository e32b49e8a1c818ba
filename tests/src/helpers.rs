pub fn run(_: &str, _: &[&str]) -> std::process::ExitCode { std::process::ExitCode::SUCCESS }
