use super::*;
use crate::config::{FILE, add_settings, settings_of};

/// The settings of some flags and a file's text.
fn of(flags: &[&str], file: &str) -> Result<Effective, Problems> {
    let directory = tempfile::tempdir().expect("temporary files can be made");
    let path = directory.path().join("m.yaml");
    std::fs::write(&path, file).expect("temporary files can be written");
    let option = Arg::new(FILE).long(FILE).value_parser(clap::value_parser!(PathBuf));
    // Environment variables of the user who runs the tests are ignored.
    let settings = settings_of::<Configuration>();
    let command = add_settings(Command::new("settings").no_binary_name(true), &settings)
        .mut_args(|arg| arg.env(None::<&'static str>))
        .arg(option);
    let named = format!("--{FILE}={}", path.display());
    let flags = flags.iter().copied().chain([named.as_str()]);
    resolve_settings(&command.try_get_matches_from(flags).expect("the flags exist"), &settings)
}

fn problems(flags: &[&str], file: &str) -> Vec<String> {
    let problems = of(flags, file).expect_err("this is wrong").0;
    // Without the directory.
    let line = |problem: &Problem| {
        let line = problem.to_string();
        match (line.find('('), line.find("m.yaml:")) {
            (Some(from), Some(to)) => format!("{}{}", &line[..=from], &line[to..]),
            _ => line,
        }
    };
    problems.iter().map(line).collect()
}

#[test]
fn without_anything_there_are_the_defaults() {
    let effective = of(&[], "").expect("defaults are right");
    assert_eq!(effective.configuration.agent.max_flows, None);
    assert!(effective.settings.iter().all(|setting| setting.source == SettingSource::Default));
}

#[test]
fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
    let effective =
        of(&["--max-flows=64", "--devices=eth1,eth2"], "max-flows: 8\nxdp-mode: off\ndevices: a\n")
            .expect("this is right");
    let agent = &effective.configuration.agent;
    assert_eq!(agent.max_flows, Some(64));
    assert_eq!(agent.xdp_mode, lb_kernel::settings::XdpMode::Off);
    assert_eq!(agent.devices.len(), 2);
    let source = |name: &str| {
        let setting = effective.settings.iter().find(|setting| setting.name == name);
        setting.expect("the setting exists").source.to_string()
    };
    assert_eq!(source("max-flows"), "flag");
    assert!(source("xdp-mode").ends_with("m.yaml:2"), "{}", source("xdp-mode"));
    assert_eq!(source("tc-mode"), "default");
}

#[test]
fn a_flag_can_switch_off_a_setting_of_the_file() {
    let on = |flags: &[&str]| {
        let effective = of(flags, "cleanup-on-exit: true\n").expect("this is right");
        effective.configuration.agent.cleanup_on_exit
    };
    assert!(on(&[]));
    assert!(!on(&["--cleanup-on-exit=false"]));
    assert!(of(&["--cleanup-on-exit"], "").expect("right").configuration.agent.cleanup_on_exit);
}

#[test]
fn all_errors_are_reported_together_with_their_locations() {
    let file = "devices: a/b\nmax-flows: 7\nxdp-mode: fast\nlogg: debug\ncleanup-on-exit: 3\n\
                manifests: services\ncontext: prod\n";
    let flags = ["--healthz-bind-address=80", "--service-node-port-range=9-1", "--log=a=b=c"];
    let mut problems = problems(&flags, file);
    problems.sort();
    assert_eq!(
        problems,
        [
            "cleanup-on-exit: \"3\" (m.yaml:5): not one of true, false",
            "context: \"prod\" (m.yaml:7): Services are read from manifests or from a cluster: \
             remove this setting or manifests",
            "devices: \"a/b\" (m.yaml:1): no name of a device: it has no slashes and blanks",
            "healthz-bind-address: \"80\" (--healthz-bind-address): neither an address and port, \
             such as 127.0.0.1:10249, nor `off`",
            "log: \"a=b=c\" (--log): not a log filter such as debug or \
             info,lb_network=debug",
            "logg: \"debug\" (m.yaml:4): unknown setting; did you mean log?",
            "max-flows: \"7\" (m.yaml:2): 7 is not in 8..=134217728",
            "service-node-port-range: \"9-1\" (--service-node-port-range): not a port range \
             such as 30000-32767",
            "xdp-mode: \"fast\" (m.yaml:3): not one of auto, native, off",
        ]
    );
}

#[test]
fn settings_that_do_not_go_together_are_named() {
    for (flags, name) in [
        (&["--devices=none"][..], "devices"),
        (&["--workload-devices=none,veth*"], "workload-devices"),
        (&["--metrics-bind-address=0.0.0.0:10256"], "metrics-bind-address"),
        (&["--service-cluster-ip-range=10.0.0.0/16,10.1.0.0/16"], "service-cluster-ip-range"),
        (&["--manifests=a", "--kubeconfig=b"], "kubeconfig"),
        (&["--udp-timeout=200"], "udp-stream-timeout"),
    ] {
        let problems = problems(flags, "");
        assert!(problems.len() == 1 && problems[0].starts_with(name), "{flags:?}: {problems:?}");
    }
    for flags in [["--metrics-bind-address=127.0.0.1:0"], ["--metrics-bind-address=off"]] {
        assert!(of(&flags, "").is_ok());
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let option = Arg::new(FILE).long(FILE).value_parser(clap::value_parser!(PathBuf));
    let command = Command::new("settings").no_binary_name(true).arg(option);
    let matches = command.try_get_matches_from(["--config=/nowhere/m.yaml"]).expect("it exists");
    let problems = resolve_settings(&matches, &[]).expect_err("there is no such file").to_string();
    assert!(
        problems.contains("/nowhere/m.yaml") && problems.contains("No such file"),
        "{problems}"
    );
}

/// What a command has no flags for does not concern it, if it is a setting at all.
#[test]
fn a_command_takes_no_notice_of_settings_of_others() {
    let directory = tempfile::tempdir().expect("temporary files can be made");
    let path = directory.path().join("m.yaml");
    std::fs::write(&path, "max-flows: 3\npin-path: /sys/fs/bpf/a\n").expect("it can be written");
    let option = Arg::new(FILE).long(FILE).value_parser(clap::value_parser!(PathBuf));
    let settings = settings_of::<crate::config::Common>();
    let command = add_settings(Command::new("settings").no_binary_name(true), &settings)
        .mut_args(|arg| arg.env(None::<&'static str>))
        .args([option, Arg::new("devices").long("devices")]);
    let flags = [&format!("--{FILE}={}", path.display()), "--devices=no/device"];
    let matches = command.try_get_matches_from(flags).expect("the flags exist");
    let configuration = resolve_settings(&matches, &settings).expect("it is right").configuration;
    assert_eq!(configuration.common.pin_path, PathBuf::from("/sys/fs/bpf/a"));
    assert_eq!(configuration.agent.max_flows, None);
}

#[test]
fn lists_are_plural_and_switches_begin_with_a_verb() {
    // `cleanup` is the command's name.
    const VERBS: [&str; 7] = ["accept", "allow", "cleanup", "merge", "require", "serve", "update"];
    // The API server's name for it.
    const SINGULAR: [&str; 1] = ["service-cluster-ip-range"];
    for setting in settings_of::<Configuration>() {
        let name = name(&setting);
        if file::takes_many(&setting) {
            assert!(name.ends_with('s') || SINGULAR.contains(&name), "{name} is a list");
        }
        let values = setting.get_possible_values();
        if values.iter().any(|value| value.get_name() == "true") {
            let (verb, _) = name.split_once('-').expect("a verb and an object");
            assert!(VERBS.contains(&verb), "{name} is a switch");
        }
    }
}
