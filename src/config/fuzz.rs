//! Configuration files at volume.

use super::{AccessConfig, Config};
use crate::fuzz::Inputs;

#[test]
fn configurations() {
    let all = Config { sim: Some("h200x2".into()), mps_dir: Some("/usr/bin".into()), ..Config::default() };
    let whole = toml::to_string(&all).expect("TOML");
    let samples =
        [&whole, "listen = \"127.0.0.1:1\"\npoll_interval_s = 3600\n", "log_format = \"json\"\n", ""];
    let words = [
        "listen",
        " = ",
        "\"",
        "[",
        "]",
        "[[",
        "{",
        "}",
        ".",
        "\n",
        "'''",
        "state_dir",
        "log_filter",
        "#",
        "1979-05-27",
    ];
    Inputs::new(samples, &words).at_most(16 << 10).check_text(|text| {
        let config = match Config::parse(text) {
            Ok(config) => config,
            Err(why) => {
                assert!(why.len() <= 4 * text.len() + 2000, "{} bytes of words", why.len());
                return false;
            }
        };
        let Ok(config) = config.check() else { return false };
        let printed = toml::to_string(&config).expect("TOML");
        assert_eq!(
            Config::parse(&printed).and_then(|again| again.check().map_err(|e| e.to_string())),
            Ok(config)
        );
        true
    });
}

#[test]
fn users_and_groups() {
    let samples = [
        "users = { \"1000\" = \"operator\", root = \"viewer\" }\ngroups = { \"44\" = \"tenant:web\" }\n",
        "[users]\n\"4294967295\" = \"admin\"\n[groups]\nroot = \"operator\"\n",
        "session_idle_s = 60\nsession_max_s = 3600\nhosts = [\"gpu7.example\"]\n",
    ];
    let words =
        ["users", "groups", " = ", "\"", "{", "}", ",", "\n", "tenant:", "admin", "root", "\"0\"", ".", "-1"];
    Inputs::new(samples, &words).at_most(16 << 10).check_text(|text| {
        let access: AccessConfig = match toml::from_str(text) {
            Ok(access) => access,
            Err(_) => return false,
        };
        // Each grant in the map is one of the file: under its number, or under a name of this host.
        let map = match access.resolved() {
            Ok(map) => map,
            Err((key, why)) => {
                assert!(
                    key.starts_with("access.") && !why.is_empty() && why.len() <= 10 * text.len() + 1000,
                    "{key}: {why}"
                );
                return false;
            }
        };
        assert_eq!((map.users.len(), map.groups.len()), (access.users.len(), access.groups.len()));
        for (uid, grant) in &map.users {
            assert_eq!(map.grant(*uid, &[]).as_ref(), Some(grant));
            assert!(access.users.values().any(|granted| granted == grant));
        }
        let printed = toml::to_string(&access).expect("TOML");
        assert_eq!(toml::from_str::<AccessConfig>(&printed).expect("its own"), access);
        true
    });
}
