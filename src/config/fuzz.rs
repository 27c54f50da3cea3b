//! Configuration files at volume.

use super::Config;
use crate::fuzz::Inputs;

#[test]
fn configurations() {
    let all = Config { sim: Some("h200x2".into()), mps_dir: Some("/usr/bin".into()), ..Config::default() };
    let whole = toml::to_string(&all).expect("TOML");
    let samples =
        [&whole, "listen = \"127.0.0.1:1\"\nlook_interval_s = 3600\n", "log_format = \"json\"\n", ""];
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
