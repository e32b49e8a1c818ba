use super::*;
use std::collections::HashMap;

fn resolve(
    file: &str,
    env: &[(&str, &str)],
    cli: &[(Key, &str)],
) -> Result<(Config, Origins), Vec<String>> {
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let file = (!file.is_empty()).then_some(("/etc/netacc.conf", file));
    Config::resolve(file, &|key| env.get(key).map(|text| text.to_string()), cli, NO_USERS)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn error(file: &str, env: &[(&str, &str)], cli: &[(Key, &str)]) -> String {
    let errors = resolve(file, env, cli).expect_err("an error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.into_iter().next().unwrap()
}

#[test]
fn the_table_and_the_defaults_agree() {
    let (config, origins) = resolve("", &[], &[]).unwrap();
    assert_eq!(config, Config::default());
    for (index, setting) in SETTINGS.iter().enumerate() {
        assert_eq!(setting.key as usize, index);
        assert_eq!(Key::from_name(setting.name), Some(setting.key));
        assert_eq!(config.value_text(setting.key), setting.default, "{}", setting.name);
        assert_eq!(origins.of(setting.key), Origin::Default);
        assert!(parse(setting.kind, setting.default).is_ok(), "{}", setting.name);
        assert!(setting.doc.ends_with('.'));
    }
}

#[test]
fn every_default_given_in_a_file_gives_the_defaults() {
    let mut text = String::from("[netacc]\n");
    for setting in SETTINGS {
        text.push_str(&format!("{}=\"{}\"\n", setting.name, setting.default));
    }
    let (config, origins) = resolve(&text, &[], &[]).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(origins.of(Key::BufferBytes), Origin::File(2));
}

#[test]
fn command_line_over_environment_over_file() {
    let file = "[netacc]\nNACC_SOR_IO_THREADS=2\n";
    let key = Key::IoThreads;
    let env = [(key.name(), "3")];
    let of = |env: &[_], cli: &[_]| {
        let (config, origins) = resolve(file, env, cli).unwrap();
        (config.io_threads, origins.of(key))
    };
    assert_eq!(of(&[], &[]), (2, Origin::File(2)));
    assert_eq!(of(&env, &[]), (3, Origin::Environment));
    assert_eq!(of(&env, &[(key, "4")]), (4, Origin::CommandLine));
    let marked = [(key.name(), "3"), (ENV_FROM_COMMAND_LINE, "NACC_LOG_PATH,NACC_SOR_IO_THREADS")];
    assert_eq!(of(&marked, &[]), (3, Origin::CommandLine));
}

#[test]
fn errors_say_where_what_why_and_what_is_valid() {
    assert_eq!(
        error("[netacc]\n\nNACC_SOR_MSG_SIZE=12x\n", &[], &[]),
        "/etc/netacc.conf:3: NACC_SOR_MSG_SIZE=12x: not a number; valid: a multiple of 4096 from 4096 to 1048576"
    );
    assert_eq!(
        error("", &[("NACC_CONNECT_RDMA_PERCENT", "101")], &[]),
        "environment: NACC_CONNECT_RDMA_PERCENT=101: too large; valid: a whole number from 0 to 100"
    );
    assert_eq!(
        error("", &[], &[(Key::Affinity, "1-")]),
        "command line: -A: NACC_SOR_AFFINITY=1-: not a list of CPU numbers; valid: CPU numbers such as 0, 1-3 or 1,3,4, at most 8191, or empty"
    );
    assert_eq!(
        error("", &[], &[(Key::Paths, "shm,ib")]),
        "command line: --paths: NACC_PATHS=shm,ib: not a list of paths; valid: shm, rdma and utcp, separated by a comma, each at most once, utcp last, or tcp alone"
    );
    assert_eq!(
        error("[netacc]\nNACC_PATHS=tcp,shm\n", &[], &[]),
        "/etc/netacc.conf:2: NACC_PATHS=tcp,shm: names tcp beside other paths; valid: shm, rdma and utcp, separated by a comma, each at most once, utcp last, or tcp alone"
    );
    assert_eq!(
        error("", &[("NACC_PATHS", "utcp,rdma")], &[]),
        "environment: NACC_PATHS=utcp,rdma: names a path behind utcp, which would never be tried; valid: shm, rdma and utcp, separated by a comma, each at most once, utcp last, or tcp alone"
    );
    assert_eq!(
        error("[netacc]\nNACC_SOR_MSGSIZE=1\n", &[], &[]),
        "/etc/netacc.conf:2: NACC_SOR_MSGSIZE=1: unknown key; did you mean NACC_SOR_MSG_SIZE?"
    );
    assert_eq!(
        error("[netacc]\nNACC_LOG_LEVEL=1\nNACC_LOG_LEVEL=1\n", &[], &[]),
        "/etc/netacc.conf:3: NACC_LOG_LEVEL=1: given twice, first in line 2; valid: each key once"
    );
    assert_eq!(
        error("[other]\nA=1\nB=2\n[netacc]\n", &[], &[]),
        "/etc/netacc.conf:1: [other]: unknown section; valid: [netacc], [rule NAME]"
    );
    assert_eq!(
        error("NACC_LOG_LEVEL=1\nB=2\n[netacc]\n", &[], &[]),
        "/etc/netacc.conf:1: NACC_LOG_LEVEL=1: outside of a section; valid: [netacc] on a line before it"
    );
}

#[test]
fn numbers_are_plain_decimal_numbers_in_their_range() {
    for (key, text) in [
        (Key::BufferBytes, "0"),
        (Key::BufferBytes, "4097"),
        (Key::BufferBytes, "1052672"),
        (Key::BufferBytes, ""),
        (Key::BufferBytes, "+4096"),
        (Key::BufferBytes, "0x4000"),
        (Key::BufferBytes, "16k"),
        (Key::BufferBytes, "1e6"),
        (Key::BufferBytes, "18446744073709567999"),
        (Key::BufferBytes, "-16384"),
        (Key::BufferBytes, "-"),
        (Key::IoThreads, "0"),
        (Key::IoThreads, "65"),
        (Key::ConnectionsPerChannel, "0"),
        (Key::EmptyChannelExpireMs, "-2"),
        (Key::EmptyChannelsMax, "-1"),
        (Key::LogLevel, "6"),
        (Key::LogLevel, "DEBUG"),
        (Key::AccelerateByDefault, "2"),
        (Key::TcpFirst, "yes"),
        (Key::PollMs, "-1"),
        (Key::PollMs, "60001"),
        (Key::PollTcpUs, "-1"),
        (Key::PollTcpUs, "1001"),
        (Key::FastConnect, "2"),
        (Key::CompVector, "1024"),
        (Key::LogPath, "a\"'b"),
        (Key::LogPath, "a\nb"),
    ] {
        error("", &[(key.name(), text)], &[]);
    }
    let (config, _) =
        resolve("", &[("NACC_EMPTY_QP_EXPIRE_MS", "-1"), ("NACC_POLL_MS", "0")], &[]).unwrap();
    assert_eq!(config.empty_channel_expire_ms, None);
    assert_eq!(config.poll_ms, Some(0));
    error("", &[(Key::LogPath.name(), &"a".repeat(1024))], &[]);
}

#[test]
fn paths_are_resolved_as_any_other_value() {
    let of = |file: &str, env: &[_], cli: &[_]| {
        let (config, origins) = resolve(file, env, cli).unwrap();
        (config.paths.to_string(), origins.of(Key::Paths))
    };
    let file = "[netacc]\nNACC_PATHS=\"rdma, shm\"\n";
    assert_eq!(of("", &[], &[]), ("shm,rdma".into(), Origin::Default));
    assert_eq!(of(file, &[], &[]), ("rdma,shm".into(), Origin::File(2)));
    let env = [("NACC_PATHS", "tcp")];
    assert_eq!(of(file, &env, &[]), ("tcp".into(), Origin::Environment));
    assert_eq!(of(file, &env, &[(Key::Paths, "rdma")]), ("rdma".into(), Origin::CommandLine));
    let (config, _, errors) =
        Config::resolve_lossy(Some(("/f", "[netacc]\nNACC_PATHS=\n")), &|_| None, &[], NO_USERS);
    assert_eq!((config, errors.len()), (Config::default(), 1));
}

#[test]
fn arena_sizes_are_powers_of_two_times_their_base() {
    let first = Key::ArenaFirstBytes.name();
    let growth = Key::ArenaGrowthMaxBytes.name();
    assert_eq!(
        error(&format!("[netacc]\n{first}=20480\n"), &[], &[]),
        "/etc/netacc.conf:2: NACC_RDMA_MR_MIN_INC_SIZE=20480: not 16384 (NACC_SOR_MSG_SIZE) times a power of two; valid: for example 16384 or 32768"
    );
    error("", &[(growth, "49152")], &[]);
    error("", &[(growth, "8192")], &[]);
    error("", &[(growth, "1073741824")], &[]);
    let (config, _) = resolve("", &[(first, "65536"), (growth, "65536")], &[]).unwrap();
    assert_eq!((config.arena_first_bytes, config.arena_growth_max_bytes), (65536, 65536));
}

#[test]
fn weaker_arena_sizes_follow_a_stronger_buffer_size() {
    // (What the environment says is stronger than the file, too.)
    let sizes = |file: &str, buffer: &str| {
        let of = |env: &[_], cli: &[_]| {
            let (config, _) = resolve(file, env, cli).unwrap();
            (config.buffer_bytes, config.arena_first_bytes, config.arena_growth_max_bytes)
        };
        let sizes = of(&[(Key::BufferBytes.name(), buffer)], &[]);
        assert_eq!(of(&[], &[(Key::BufferBytes, buffer)]), sizes);
        sizes
    };
    let all = "[netacc]\nNACC_SOR_MSG_SIZE=16384\nNACC_RDMA_MR_MIN_INC_SIZE=16384\nNACC_RDMA_MR_MAX_INC_SIZE=8388608\n";
    for file in ["", all] {
        assert_eq!(sizes(file, "65536"), (65536, 65536, 8 << 20));
        assert_eq!(sizes(file, "4096"), (4096, 16384, 8 << 20));
        assert_eq!(sizes(file, "12288"), (12288, 24576, 12288 << 10));
    }
    // Also where the file has other sizes than those that are installed.
    let own = "[netacc]\nNACC_SOR_MSG_SIZE=32768\nNACC_RDMA_MR_MIN_INC_SIZE=32768\nNACC_RDMA_MR_MAX_INC_SIZE=4194304\n";
    assert_eq!(sizes(own, "12288"), (12288, 12288 << 2, 12288 << 9));
}

#[test]
fn one_edited_line_of_the_installed_file_is_enough() {
    let file = include_str!("../../../../netacc.conf");
    let line = "\nNACC_SOR_MSG_SIZE=16384\n";
    assert!(file.contains(line));
    for buffer in ["4096", "65536", "1048576"] {
        let edited = file.replace(line, &format!("\nNACC_SOR_MSG_SIZE={buffer}\n"));
        let (config, _) = resolve(&edited, &[], &[]).unwrap();
        assert_eq!(config.buffer_bytes.to_string(), buffer);
        let first = i64::from(config.arena_first_bytes);
        assert!(is_power_of_two_times(i64::from(config.buffer_bytes), first));
        assert!(is_power_of_two_times(first, i64::from(config.arena_growth_max_bytes)));
    }
    // What is no default was meant: it has to fit.
    error("[netacc]\nNACC_SOR_MSG_SIZE=65536\nNACC_RDMA_MR_MIN_INC_SIZE=32768\n", &[], &[]);
}

#[test]
fn every_buffer_size_leaves_valid_arena_sizes() {
    for pages in 1..=256 {
        let text = (pages * 4096).to_string();
        let (config, _) = resolve("", &[("NACC_SOR_MSG_SIZE", &text)], &[]).unwrap();
        let first = i64::from(config.arena_first_bytes);
        assert!(is_power_of_two_times(i64::from(config.buffer_bytes), first));
        assert!(is_power_of_two_times(first, i64::from(config.arena_growth_max_bytes)));
        assert!(i64::from(config.arena_growth_max_bytes) <= ARENA_BYTES_MAX);
    }
}

#[test]
fn hidden_values_are_checked_too() {
    error("[netacc]\nNACC_SOR_IO_THREADS=x\n", &[("NACC_SOR_IO_THREADS", "3")], &[]);
}

#[test]
fn the_library_goes_on_with_defaults() {
    let file = (
        "/f",
        "[netacc]\nNACC_SOR_IO_THREADS=x\nNACC_LOG_LEVEL=1\nNACC_LOG_LEVEL=2\nNACC_RDMA_MR_MIN_INC_SIZE=5000\n",
    );
    let (config, origins, errors) = Config::resolve_lossy(Some(file), &|_| None, &[], NO_USERS);
    assert_eq!(config, Config { log_level: LogLevel::Debug, ..Config::default() });
    assert_eq!(origins.of(Key::IoThreads), Origin::Default);
    assert_eq!(errors.len(), 3);
}

#[test]
fn errors_are_bounded_and_printable() {
    let text = "\u{1b}[31m\n".repeat(1000);
    let (_, _, errors) = Config::resolve_lossy(Some(("/f", &text)), &|_| None, &[], NO_USERS);
    assert_eq!(errors.len(), ERRORS_MAX);
    assert!(errors.iter().all(|error| !error.to_string().contains('\u{1b}')));
    let long = "a".repeat(100_000);
    let (_, _, errors) = Config::resolve_lossy(Some(("/f", &long)), &|_| None, &[], NO_USERS);
    assert!(errors[0].to_string().len() < 300);
}

#[test]
fn no_input_panics() {
    // Every truncation and every single damaged byte of a full file.
    let (config, origins) =
        resolve("", &[("NACC_LOG_PATH", "/a b#c"), ("NACC_SOR_AFFINITY", "1-3,5")], &[]).unwrap();
    let full = config.render(&origins);
    for end in 0..full.len() {
        Config::resolve_lossy(full.get(..end).map(|text| ("/f", text)), &|_| None, &[], NO_USERS);
        for damage in ["\"", "#", "=", "[", "9", "\n", "\u{0}", "é"] {
            if let (Some(a), Some(b)) = (full.get(..end), full.get(end + 1..)) {
                Config::resolve_lossy(
                    Some(("/f", &format!("{a}{damage}{b}"))),
                    &|_| None,
                    &[],
                    NO_USERS,
                );
            }
        }
    }
}

#[test]
fn what_is_rendered_reads_back() {
    let env = [
        ("NACC_LOG_PATH", "/a b#\"c"),
        ("NACC_SOR_AFFINITY", "3,1,2"),
        ("NACC_POLL_MS", "7"),
        ("NACC_POLL_TCP_US", "50"),
        ("NACC_PATHS", "rdma"),
    ];
    let file = "[netacc]\nNACC_EMPTY_QP_EXPIRE_MS=-1\n";
    let (config, origins) = resolve(file, &env, &[(Key::TcpFirst, "1")]).unwrap();
    let text = config.render(&origins);
    assert_eq!(resolve(&text, &[], &[]).unwrap().0, config);
    let rows: Vec<_> = parse_rendered(&text).collect();
    assert_eq!(rows.len(), Key::ALL.len());
    for (key, (name, value, origin)) in Key::ALL.iter().zip(rows) {
        assert_eq!(name, key.name());
        assert_eq!(value, config.value_text(*key));
        assert_eq!(origin, origins.of(*key).as_str());
    }
    assert!(text.contains("# file: /etc/netacc.conf\n"));
    assert_eq!(file_of(&text), Some("/etc/netacc.conf"));
    assert!(text.contains("NACC_EMPTY_QP_EXPIRE_MS=-1 # file:2\n"));
    assert!(text.len() < 4096);
}

#[test]
fn sizes_of_one_source_have_to_fit_each_other() {
    let (size, first) = (Key::BufferBytes.name(), Key::ArenaFirstBytes.name());
    let both = format!("[{SECTION}]\n{size}=65536\n{first}=32768\n");
    assert!(error(&both, &[], &[]).contains(first));
    assert!(error("", &[(size, "65536"), (first, "16384")], &[]).contains(first));
    // The stronger one of two sources is right.
    let (config, _) = resolve(&both.replace(first, "#"), &[(first, "131072")], &[]).unwrap();
    assert_eq!(config.arena_first_bytes, 131_072);
    assert!(!is_power_of_two_times(0, 4096) && !is_power_of_two_times(4096, 0));
    assert!(!is_power_of_two_times(-4096, -8192));
}

#[test]
fn a_path_of_a_log_has_its_process_and_its_user() {
    for (given, path) in [
        ("/tmp/netacc.log", "/tmp/netacc.log"),
        ("/tmp/%u/%p.log", "/tmp/1000/4711.log"),
        ("%p%p%%u%", "47114711%u%"),
        ("50%x/%", "50%x/%"),
        ("", ""),
    ] {
        let mut written = String::new();
        write_log_path(&mut written, given, 4711, 1000).unwrap();
        assert_eq!(written, path, "of {given}");
    }
}

#[test]
fn levels_and_origins_have_their_names() {
    let words = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
    for (number, word) in words.iter().enumerate() {
        let given = number.to_string();
        let (config, origins) = resolve("", &[(Key::LogLevel.name(), &given)], &[]).unwrap();
        assert_eq!(config.log_level.as_str(), *word);
        assert_eq!(origins.of(Key::LogLevel).as_str(), "environment");
        assert_eq!(origins.of(Key::LogPath).as_str(), "default");
    }
    assert_eq!(Origin::File(3).as_str(), "file");
    assert_eq!(Origin::CommandLine.as_str(), "command-line");
}
