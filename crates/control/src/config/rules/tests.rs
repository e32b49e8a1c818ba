use super::super::{Config, ConfigError, Key, NO_USERS, SECTION, parse_rendered, rendered_rules};
use super::*;
use std::string::ToString;

fn resolve(rules: &str) -> Result<Vec<Rule>, Vec<String>> {
    let text = format!("[{SECTION}]\nNACC_LOG_LEVEL=2\n{rules}");
    let told = |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect();
    let users = |name: &str| [("www-data", 33), ("3proxy", 1033)].into_iter().find(|u| u.0 == name);
    let users = |name: &str| users(name).map(|user| user.1);
    Config::resolve(Some(("/f", &text)), &|_| None, &[], &users).map(|c| c.0.rules).map_err(told)
}

fn one(conditions: &str) -> Rule {
    let rules = resolve(&format!("[rule r]\n{conditions}\naccelerate=0\n")).unwrap();
    assert_eq!(rules.len(), 1);
    rules.into_iter().next().unwrap()
}

fn subject(peer: &str, port: u16) -> Subject {
    let direction = Direction::Out;
    Subject { port, peer: peer.parse().unwrap(), direction, user: 1000 }
}

#[test]
fn a_rule_holds_when_all_its_conditions_do() {
    let rule = one("port=6379, 7000-7010\naddress=10.0.0.0/8,::1\ndirection=out\nuser=1000-1999,0");
    let holds = |of| rule.holds(&of);
    assert!(holds(subject("10.1.2.3", 6379)) && holds(subject("::1", 7010)));
    assert!(!holds(subject("11.1.2.3", 6379)) && !holds(subject("10.1.2.3", 6380)));
    assert!(!holds(Subject { direction: Direction::In, ..subject("::1", 7000) }));
    assert!(!holds(Subject { user: 2000, ..subject("::1", 7000) }));
    assert!(holds(Subject { user: 0, ..subject("::1", 7000) }));
    assert!(one("").holds(&subject("1.2.3.4", 1)), "no condition: all");
    assert!(one("direction=in").holds(&Subject { direction: Direction::In, ..subject("::", 1) }));
}

#[test]
fn a_user_is_named_by_number_or_by_name() {
    let rule = one("user=www-data, 2000-2009,3proxy");
    let holds = |user| rule.holds(&Subject { user, ..subject("::1", 1) });
    assert!(holds(33) && holds(2009) && holds(1033));
    assert!(!holds(0) && !holds(1000) && !holds(3));
    assert!(rule.to_string().contains("\nuser=33,2000-2009,1033\n"), "what it stands for is shown");
}

#[test]
fn an_address_is_in_a_network_however_it_is_written() {
    for (network, inside, outside) in [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("10.0.0.0/8", "::ffff:10.1.1.1", "::10.1.1.1"),
        ("::ffff:10.0.0.0/104", "10.1.1.1", "11.1.1.1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        ("::/0", "2001:db8::1", "203.0.113.9"),
        ("fd00::/8", "fdff::1", "fe00::1"),
        ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ("10.0.0.2/31", "10.0.0.3", "10.0.0.4"),
        ("fe80::/10", "febf::1", "fec0::1"),
    ] {
        let network = Network::parse(network).unwrap();
        assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
        assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
    }
}

#[test]
fn the_first_rule_that_holds_counts() {
    let rules =
        "[rule a]\nport=1\npaths=shm\n[rule b]\nport=1-2\naccelerate=0\n[rule c]\naccelerate=1\n";
    let config = Config { rules: resolve(rules).unwrap(), ..Config::default() };
    let of = |port| config.rule(&subject("::1", port)).map(|r| (r.name.as_str(), r.paths()));
    assert_eq!(of(1), Some(("a", Some(Paths::parse("shm").unwrap()))));
    assert_eq!(of(2), Some(("b", Some(Paths::TCP))));
    assert_eq!(of(3), Some(("c", None)));
    assert_eq!(Config::default().rule(&subject("::1", 1)), None);
}

#[test]
fn a_program_is_named_by_its_file_or_by_what_was_started() {
    let rule = one("program=redis-server,/opt/app/bin/run,a-name-of-20-bytes-x,a-cut-name-of-1");
    let is = |file, name| rule.is_of(Program { file, name });
    assert!(is("/usr/bin/redis-server", "redis-server"));
    assert!(is("/usr/bin/redis-check-rdb", "redis-server"), "started by a link");
    assert!(is("/usr/bin/redis-server", "worker"), "renamed since");
    assert!(is("/opt/app/bin/run", "x") && !is("/opt/other/bin/run", "x"));
    assert!(is("/usr/bin/python3", "a-name-of-20-bytes-x"));
    assert!(!is("/usr/bin/python3", "a-name-of-20-bytes-y"));
    assert!(is("/usr/bin/python3", "a-cut-name-of-16-bytes"), "the kernel keeps 15");
    assert!(!is("/usr/bin/redis-server-2", "redis") && !is("", ""));
    assert!(one("").is_of(Program::default()));
}

#[test]
fn a_rule_says_how_long_waits_poll_and_whether_there_is_a_trace() {
    let of = |text: &str| {
        let rules = resolve(&format!("[rule r]\n{text}\n")).unwrap();
        let rule = rules.into_iter().next().unwrap();
        assert_eq!(rule.paths(), None, "it takes the paths that it would take");
        (rule.poll_us(), rule.trace(), rule.to_string())
    };
    assert_eq!(of("poll=0").0, Some(0));
    assert_eq!((of("poll=60us").0, of("poll=2ms").0, of("poll = 10 ms").0), {
        (Some(60), Some(2_000), Some(10_000))
    });
    assert_eq!((of("trace=0").1, of("trace=1").1, of("poll=0").1), (Some(false), Some(true), None));
    assert_eq!(of("trace=1\npoll=2ms").2, "[rule r]\npoll=2000us\ntrace=1\n");
    assert_eq!(of("port=1\npoll=0us").2, "[rule r]\nport=1\npoll=0\n");
    let spoilt = Rule::unreadable("r");
    assert_eq!((spoilt.poll_us(), spoilt.trace()), (None, None));
    let both = one("poll=1us\ntrace=0");
    assert_eq!((both.paths(), both.poll_us(), both.trace()), {
        (Some(Paths::TCP), Some(1), Some(false))
    });
}

#[test]
fn mistakes_say_where_what_why_and_what_is_valid() {
    let error = |rule: &str| {
        let errors = resolve(rule).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors.into_iter().next().unwrap()
    };
    for (rule, said) in [
        ("[rule r]\nport=0\naccelerate=0", "/f:4: port=0: not a port; valid: ports, such as"),
        ("[rule r]\nport=5-4\naccelerate=0", "/f:4: port=5-4: ends before it begins"),
        ("[rule r]\nport=65536\naccelerate=0", "not a number that can be"),
        ("[rule r]\nport=http\naccelerate=0", "not a number that can be"),
        ("[rule r]\nport=1,,2\naccelerate=0", "a comma too many"),
        ("[rule r]\nport=\naccelerate=0", "empty, or a comma too many"),
        ("[rule r]\nuser=redis\naccelerate=0", "/f:4: user=redis: no such user; valid: names in"),
        ("[rule r]\nuser=www\naccelerate=0", "no such user"),
        ("[rule r]\nuser=9-5\naccelerate=0", "ends before it begins; valid: user numbers"),
        ("[rule r]\naddress=10.0.0.1/8\naccelerate=0", "behind its length; valid: 10.0.0.0/8"),
        ("[rule r]\naddress=10.0.0.0/33\naccelerate=0", "valid: /0 to /32"),
        ("[rule r]\naddress=localhost\naccelerate=0", "not an address; valid: an address, or"),
        ("[rule r]\naddress=::1/x\naccelerate=0", "not a number of bits"),
        ("[rule r]\ndirection=both\naccelerate=0", "valid: out (this end connects) or in"),
        ("[rule r]\naccelerate=yes", "neither 0 nor 1; valid: 0 or 1"),
        ("[rule r]\npaths=udp", "/f:4: paths=udp: not a list of paths; valid: shm, rdma"),
        ("[rule r]\nprogram=bin/x\naccelerate=0", "not a program's name"),
        ("[rule r]\nports=1\naccelerate=0", "unknown key of a rule; valid: program, user, port"),
        ("[rule r]\nNACC_LOG_LEVEL=1\naccelerate=0", "unknown key of a rule"),
        ("[rule r]\nport=1\nport=2\naccelerate=0", "/f:5: port=2: given twice"),
        ("[rule r]\nport=1", "/f:3: [rule r]: a rule that says nothing; valid: accelerate=, paths"),
        (
            "[rule r]\ntrace=2",
            "/f:4: trace=2: neither 0 nor 1; valid: 0 or 1; each call: NACC_TRACE=2, of the whole",
        ),
        ("[rule r]\npoll=1", "/f:4: poll=1: not a time with its unit; valid: 0, or a time to 10ms"),
        ("[rule r]\npoll=", "not a time with its unit"),
        ("[rule r]\npoll=ms", "not a time with its unit"),
        ("[rule r]\npoll=-1us", "not a time with its unit"),
        ("[rule r]\npoll=1.5ms", "not a time with its unit"),
        ("[rule r]\npoll=10001us", "too long; valid: 0, or a time to 10ms"),
        ("[rule r]\npoll=4294968ms", "too long"),
        ("[rule r]\npoll=99999999999us", "too long"),
        (
            "[rule r]\nwait=1",
            "a rule; valid: program, user, port, address, direction, accelerate, \
                             paths, poll, trace",
        ),
        ("[rule r]\naccelerate=0\npaths=shm", "contradict each other; valid: one of both"),
        ("[rule r]\naccelerate=1\npaths=tcp", "contradict each other"),
        ("[rule]\naccelerate=0", "/f:3: [rule]: a rule without a proper name; valid: [rule NAME]"),
        ("[rule a b]\naccelerate=0", "a rule without a proper name"),
        ("[rule r]\naccelerate=0\n[rule r]\naccelerate=1", "/f:5: [rule r]: a second rule of"),
        ("[rules]\naccelerate=0", "[rules]: unknown section; valid: [netacc], [rule NAME]"),
        ("[rule r]\naccelerate=0\nport", "/f:5: port: not KEY=VALUE"),
    ] {
        let told = error(rule);
        assert!(told.contains(said), "{rule}: {told}");
    }
    let many = "[rule r%]\naccelerate=1\n";
    let many: String = (0..=RULES_MAX).map(|n| many.replace('%', &n.to_string())).collect();
    assert!(error(&many).contains("one rule too many; valid: at most 64"));
    let long = (1..=65).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    assert!(error(&format!("[rule r]\nport={long}\naccelerate=0")).contains("too long a list"));
}

/// What the library does, which has to run in any case.
#[test]
fn a_rule_with_a_mistake_keeps_everything_behind_it_on_tcp() {
    for bad in ["port=x", "port", "NACC_LOG_LEVEL=1", "address=1.2.3.4/33"] {
        let text = format!(
            "[rule a]\nport=1\naccelerate=1\n[rule b]\n{bad}\naccelerate=1\n[rule c]\naccelerate=1\n"
        );
        let (config, _, errors) =
            Config::resolve_lossy(Some(("/f", &text)), &|_| None, &[], NO_USERS);
        assert_eq!(errors.len(), 1, "{errors:?}");
        let of = |port| config.rule(&subject("::1", port)).map(Rule::paths);
        assert_eq!((of(1), of(2)), (Some(None), Some(Some(Paths::TCP))), "{bad}");
        let rule = config.rule(&subject("::1", 2)).unwrap();
        assert!(rule.is_unreadable() && rule.is_of(Program::default()));
        let again = rendered_rules(&config.render(&super::super::tests_origins())).0;
        let paths: Vec<_> = again.iter().map(Rule::paths).collect();
        assert_eq!(paths, [None, Some(Paths::TCP), None], "{bad}");
    }
}

/// It has the mistake, and not the section before it.
#[test]
fn a_broken_header_begins_a_rule_with_a_mistake() {
    for bad in ["[rule web", "[rule web] port=1", "[ rule web", "[rule", "[ruleweb"] {
        for before in ["", "[netacc]\nNACC_LOG_LEVEL=2\n", "[rule a]\nport=1\naccelerate=1\n"] {
            let text = format!("{before}{bad}\nport=7\naccelerate=0\n[rule c]\naccelerate=1\n");
            let (config, _, errors) =
                Config::resolve_lossy(Some(("/f", &text)), &|_| None, &[], NO_USERS);
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].to_string().contains(bad), "{errors:?}");
            let rule = config.rule(&subject("::1", 7)).unwrap();
            assert!(rule.is_unreadable() && rule.is_of(Program::default()), "{text}");
            let first = config.rules.first().filter(|rule| rule.name == "a");
            assert_eq!(first.is_some(), before.contains("rule"));
            assert!(first.is_none_or(|a| a.holds(&subject("::1", 1)) && a.paths().is_none()));
        }
    }
}

const FULL: &str = "[rule web.1]\nprogram=nginx,/opt/x\nuser=0,1000-1999\nport=80,8000-8099\n\
                    address=10.0.0.0/8,::1,fd00::/8\ndirection=in\naccelerate=1\npaths=shm\n\
                    [rule rest]\naccelerate=0\n";

#[test]
fn what_is_rendered_reads_back() {
    let rules = resolve(FULL).unwrap();
    assert_eq!(rules.iter().map(ToString::to_string).collect::<String>(), FULL);
    let config = Config { rules, ..Config::default() };
    let text = config.render(&super::super::tests_origins());
    assert_eq!(rendered_rules(&text), (config.rules, true));
    assert_eq!(parse_rendered(&text).count(), Key::ALL.len(), "rules are no parameters");
}

/// A process shows as much of its configuration as there is room for, in whole lines.
#[test]
fn a_rule_that_was_cut_is_not_taken_for_another() {
    let rules = resolve(FULL).unwrap();
    let config = Config { rules: rules.clone(), ..Config::default() };
    let text = config.render(&super::super::tests_origins());
    let first = text.find("[rule web.1]").unwrap();
    for (end, _) in
        text.match_indices('\n').filter(|(end, _)| (first..text.len() - 1).contains(end))
    {
        let (left, is_whole) = rendered_rules(&text[..=end]);
        assert!(!is_whole && left.len() < rules.len() && rules.starts_with(&left), "{left:?}");
    }
    assert_eq!(rendered_rules(&text[..first]), (Vec::new(), true));
}

/// As much as a process shows is made, and is known to be a part.
#[test]
fn many_rules_are_not_rendered_in_vain() {
    let ports = (0..64).map(|n| (10_000 + n).to_string()).collect::<Vec<_>>().join(",");
    let many = (0..64).map(|n| format!("[rule r{n}]\nport={ports}\naccelerate=0\n"));
    let config = Config { rules: resolve(&many.collect::<String>()).unwrap(), ..Config::default() };
    let text = config.render(&super::super::tests_origins());
    let most = crate::stats::CONFIG_BYTES;
    assert!((most..most + 512).contains(&text.len()), "{}", text.len());
    let shown = &text[..=text[..most].rfind('\n').unwrap()];
    let (rules, is_whole) = rendered_rules(shown);
    assert!(!is_whole && rules.len() > 2 && config.rules.starts_with(&rules));
    // Room for the parameters alone.
    let full = format!("[{SECTION}]\nNACC_LOG_PATH={}\n", "x".repeat(most - 40));
    assert_eq!(rendered_rules(&full), (Vec::new(), false));
}

#[test]
fn no_input_panics() {
    for end in 0..FULL.len() {
        let _ = resolve(&FULL[..end]);
        for damage in ["\"", "#", "=", "[", "]", "9", "-", "/", ",", "\n", "\u{0}", "é"] {
            let _ = resolve(&format!("{}{damage}{}", &FULL[..end], &FULL[end + 1..]));
            let _ = resolve(&format!("{}{damage}{}", &FULL[..end], &FULL[end..]));
        }
    }
    // Words at random where a value is due.
    let words = ["", "0", "65535", "65536", "-", "1-", "::", "/", "10.0.0.0/8", "/128", "é", "in"];
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    for _ in 0..20_000 {
        let mut text = String::from("[rule r]\n");
        for _ in 0..random(4) {
            let value: Vec<&str> = (0..=random(3)).map(|_| words[random(words.len())]).collect();
            text += &format!(
                "{}={}\n",
                KEYS[random(KEYS.len())],
                value.join(",/-"[random(3)..].get(..1).unwrap())
            );
        }
        if let Ok(rules) = resolve(&text) {
            let again: String = rules.iter().map(ToString::to_string).collect();
            assert_eq!(resolve(&again), Ok(rules), "{text}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_known_from_what_is_shown() {
    let (mut config, origins) = Config::resolve(None, &|_| None, &[], NO_USERS).unwrap();
    config.rules = vec![Rule::of_unreadable_file(), Rule::unreadable("a")];
    let shown = rendered_rules(&config.render(&origins)).0;
    let is: Vec<bool> = shown.iter().map(Rule::is_of_unreadable_file).collect();
    assert_eq!(is, [true, false]);
    assert_eq!(shown[0].paths(), Some(Paths::TCP));
}
