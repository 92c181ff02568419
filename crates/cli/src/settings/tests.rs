//! What holds for every setting, which layer wins, and what contradicts what.

use std::collections::BTreeSet;
use std::path::PathBuf;

use breakbulk_proto::{BudgetConfig, Limits};

use super::file::File;
use super::flags::Typed;
use super::layers::Environment;
use super::proof::{BridgeSettings, Certificate, ClientAuth, Identity, LinkSettings, Trust};
use super::value::{Arity, Value};
use super::*;

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment::new(pairs.iter().map(|(name, value)| (name.into(), value.into()))).unwrap()
}

fn typed(pairs: &[(&'static str, &str)]) -> Vec<Typed> {
    let one = |(key, text): &(&'static str, &str)| Typed { key, flag: format!("--{key}"), texts: vec![(*text).into()] };
    pairs.iter().map(one).collect()
}

fn file(text: &str) -> File {
    File::parse("b.toml".into(), text).unwrap()
}

/// Layers of which the file alone says something.
fn from_file(text: &str) -> Layers {
    Layers::new(Vec::new(), &environment(&[]), file(text))
}

fn bridge(text: &str) -> Result<BridgeSettings, String> {
    let layers = from_file(text);
    let settings = Settings::read(&layers).map_err(|error| error.to_string())?;
    BridgeSettings::prove(settings, &layers).map_err(|error| error.to_string())
}

fn link(text: &str) -> Result<LinkSettings, String> {
    let layers = from_file(text);
    let settings = Settings::read(&layers).map_err(|error| error.to_string())?;
    LinkSettings::prove(settings, &layers, |memory| memory).map_err(|error| error.to_string())
}

#[test]
fn every_setting_has_a_name_a_sentence_and_a_default_that_holds() {
    let keys: BTreeSet<&str> = all().map(|setting| setting.key).collect();
    assert_eq!(keys.len(), all().count());
    let layers = from_file("");
    for setting in all() {
        assert!(setting.paragraphs().iter().all(|text| text.ends_with('.')), "{}", setting.key);
        assert!(setting.paragraphs()[0].len() < 120, "{}", setting.key);
        let shown = layers.show(setting).unwrap();
        let is_set = matches!(setting.shape.arity, Arity::One | Arity::Switch);
        assert_eq!(shown.is_some(), is_set, "{}", setting.key);
        assert!(shown.is_none_or(|shown| shown.lines == [setting.default]), "{}", setting.key);
        assert_eq!(layers.origin(setting.key), Origin::Default);
    }
}

#[test]
fn the_defaults_are_those_of_the_library() {
    let link = link("").unwrap();
    assert_eq!((link.limits, link.budget), (Limits::default(), BudgetConfig::default()));
    assert_eq!(link.trust, Trust::Signed { roots: Roots::Both, ca: None });
    assert!(link.ping_interval < link.idle_timeout && link.idle_timeout.as_secs() == 30);
}

#[test]
fn a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default() {
    let layers = Layers::new(
        typed(&[("cap", "1")]),
        &environment(&[("BREAKBULK_CAP", "2"), ("BREAKBULK_MAX_GROUPS", "2")]),
        file("cap = 3\nmax_groups = 3\nmax_message = 3\n"),
    );
    let at = |key| (layers.show(find(key)).unwrap().unwrap().lines.concat(), layers.origin(key).to_string());
    assert_eq!(at("cap"), ("1".into(), "flag --cap".into()));
    assert_eq!(at("max_groups"), ("2".into(), "BREAKBULK_MAX_GROUPS".into()));
    assert_eq!(at("max_message"), ("3".into(), "file b.toml:3".into()));
    assert_eq!(at("grace"), ("5s".into(), "default".into()));
}

#[test]
fn a_list_replaces_the_lists_below_it() {
    let pairs = [("BREAKBULK_HEADER", "A: 1, 2\nB: 3\n"), ("BREAKBULK_ALLOW_HOST", "a.example, b.example:1")];
    let layers = Layers::new(Vec::new(), &environment(&pairs), file("header = ['C: d']\nallow_origin = ['https://x']"));
    let settings = Settings::read(&layers).unwrap();
    let headers: Vec<_> = settings.header.iter().map(|header| (&*header.name, header.value.reveal())).collect();
    assert_eq!(headers, [("A", "1, 2"), ("B", "3")]);
    assert_eq!(settings.allow_host, [Host("a.example".into()), Host("b.example:1".into())]);
    assert_eq!(settings.allow_origin, [WebOrigin("https://x".into())]);
}

#[test]
fn an_empty_variable_is_none_and_a_strange_one_is_noticed() {
    let environment =
        environment(&[("BREAKBULK_CAP", ""), ("BREAKBULK_CPA", "1"), ("BREAKBULK_CONFIG", "x"), ("A", "b")]);
    assert_eq!(environment.get("BREAKBULK_CAP"), None);
    assert_eq!(environment.unknown_variables().collect::<Vec<_>>(), ["BREAKBULK_CPA"]);
}

#[test]
fn the_usual_file_is_in_the_directory_for_configuration() {
    let usual = |pairs: &[(&str, &str)]| environment(pairs).default_file();
    assert_eq!(usual(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), Some("/x/breakbulk/config.toml".into()));
    assert_eq!(usual(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]), Some("/h/.config/breakbulk/config.toml".into()));
    assert_eq!(usual(&[]), None);
    let data = |pairs: &[(&str, &str)]| environment(pairs).default_data();
    assert_eq!(data(&[("XDG_DATA_HOME", "/x"), ("HOME", "/h")]), Some("/x/breakbulk".into()));
    assert_eq!(data(&[("HOME", "/h")]), Some("/h/.local/share/breakbulk".into()));
}

#[test]
fn a_bridge_needs_two_ends() {
    let want = "listen is not set: give --listen, BREAKBULK_LISTEN, or listen in the file";
    assert_eq!(bridge("connect = 'stdio:'").unwrap_err(), want);
    let want = "connect is not set: give --connect, BREAKBULK_CONNECT, or connect in the file";
    assert_eq!(bridge("listen = 'stdio:'").unwrap_err(), want);
    let want = "listen (file b.toml:1) and connect (file b.toml:2) cannot both be stdio:";
    assert_eq!(bridge("listen = 'stdio:'\nconnect = 'stdio:?dialect=stdio'").unwrap_err(), want);
}

#[test]
fn a_cap_from_outside_is_for_the_peer_unless_its_address_has_one() {
    let connect = |text: &str| bridge(&format!("listen = 'ws://h:1'\n{text}")).unwrap().upstream.address;
    let plain = connect("connect = 'ws://h:2'\npreset = 'nostr'\ndialect = 'cep22'");
    assert_eq!((plain.cap, plain.dialect), (Preset::find("nostr").map(|preset| preset.cap), Some(Dialect::Cep22)));
    assert_eq!(connect("connect = 'ws://h:2'\npreset = 'nostr'\ncap = '1k'").cap, Some(1000));
    let own = connect("connect = 'ws://h:2?cap=5k&dialect=ahp'\ncap = '1k'\ndialect = 'cep22'\npreset = 'nostr'");
    assert_eq!((own.cap, own.dialect, own.preset), (Some(5000), Some(Dialect::Ahp), None));
    assert_eq!(bridge("listen = 'ws://h:1'\nconnect = 'ws://h:2'\ncap = '1k'").unwrap().downstream.address.cap, None);
}

#[test]
fn a_listener_authenticates_in_one_way() {
    let key =
        |text: &str| bridge(&format!("listen = 'ws://h:1'\nconnect = 'ws://h:2'\n{text}")).map(|it| it.access.key);
    assert_eq!(key(""), Ok(ClientAuth::Made));
    let token = "0123456789abcdef";
    assert_eq!(key(&format!("token = '{token}'")), Ok(ClientAuth::Token(Secret::parse(token).unwrap())));
    let want = "token is \"(set)\" (file b.toml:3): a token has 16 to 1,024 characters, not 3";
    assert_eq!(key("token = 'abc'").unwrap_err(), want);
    assert_eq!(key("no_auth = true"), Ok(ClientAuth::Nothing));
    let want = "token (file b.toml:3) and no_auth (file b.toml:4) cannot be used together";
    assert_eq!(key("token = 'abc'\nno_auth = true").unwrap_err(), want);
}

#[test]
fn a_listener_with_tls_has_one_certificate() {
    let tls = |listen: &str, text: &str| {
        let bridge = bridge(&format!("listen = '{listen}'\nconnect = 'ws://h:2'\n{text}"));
        bridge.map(|bridge| bridge.access.tls.map(|tls| tls.certificate))
    };
    let files = Identity { certificate: "c".into(), key: "k".into() };
    assert_eq!(tls("wss://h:1/", "tls_self_signed = true"), Ok(Some(Certificate::Made)));
    assert_eq!(tls("wss://h:1/", "tls_cert = 'c'\ntls_key = 'k'"), Ok(Some(Certificate::Files(files))));
    assert_eq!(tls("stdio:", "tls_self_signed = true"), Ok(None));
    for (listen, text, want) in [
        (
            "wss://h:1/",
            "",
            "listen is \"wss://h:1/\" (file b.toml:1): wss: needs tls_cert and tls_key, or tls_self_signed",
        ),
        (
            "ws://h:1/",
            "tls_self_signed = true",
            "listen is \"ws://h:1/\" (file b.toml:1): a certificate is set, so it must be wss:",
        ),
        ("wss://h:1/", "tls_key = 'k'", "tls_key is \"k\" (file b.toml:3): it also needs tls_cert"),
        (
            "wss://h:1/",
            "tls_cert = 'c'\ntls_key = 'k'\ntls_self_signed = true",
            "tls_cert (file b.toml:3) and tls_self_signed (file b.toml:5) cannot be used together",
        ),
    ] {
        assert_eq!(tls(listen, text).unwrap_err(), want);
    }
}

#[test]
fn one_thing_at_a_time_is_trusted() {
    let hex = "0f".repeat(32);
    let trust = |text: &str| link(text).map(|link| link.trust);
    assert_eq!(trust("insecure = true"), Ok(Trust::Anything));
    assert_eq!(trust(&format!("tls_fingerprint = 'sha256:{hex}'")), Ok(Trust::Fingerprint(Fingerprint([15; 32]))));
    let ca = Some(PathBuf::from("c"));
    assert_eq!(trust("tls_ca = 'c'\ntls_roots = 'native'"), Ok(Trust::Signed { roots: Roots::Native, ca }));
    let both = format!("tls_fingerprint = 'sha256:{hex}'\ninsecure = true");
    let want = "tls_fingerprint (file b.toml:1) and insecure (file b.toml:2) cannot be used together";
    assert_eq!(trust(&both).unwrap_err(), want);
    let want = "tls_client_cert is \"c\" (file b.toml:1): it also needs tls_client_key";
    assert_eq!(trust("tls_client_cert = 'c'").unwrap_err(), want);
}

#[test]
fn limits_that_do_not_hold_are_named_as_they_were_written() {
    for (text, want) in [
        ("max_nesting = 9", "max_nesting is \"9\" (file b.toml:1): allowed are 16 to 16777216"),
        ("max_groups = 0", "max_groups is \"0\" (file b.toml:1): allowed are 1 to 1024"),
        ("max_frame = 100", "max_frame is \"100\" (file b.toml:1): allowed are 512 to 4294967295 bytes"),
        ("group_timeout = '25h'", "group_timeout is \"25h\" (file b.toml:1): allowed are 1 to 86400000 ms"),
        (
            "memory = '1M'\nmax_message = '2M'",
            "max_message is \"2M\" (file b.toml:2): allowed are up to 1062204 bytes, because of memory and \
             memory_per_token",
        ),
        (
            "max_frame = '2M'\nmax_message = '1M'",
            "max_message is \"1M\" (file b.toml:2): allowed are 2M and more, because of max_frame",
        ),
        ("max_message = 1", "max_message is \"1\" (file b.toml:1): allowed are 512 bytes and more"),
        ("max_frame = '1GiB'", "max_frame is \"1GiB\" (file b.toml:1): allowed are up to 32MiB, which is max_message"),
        (
            "memory = '1M'",
            "memory is \"1M\" (file b.toml:1): it needs at least 32MiB, because max_message is 32MiB: raise memory, or lower \
             max_message",
        ),
        (
            "ping_interval = '30s'",
            "ping_interval (file b.toml:1) and idle_timeout (default) contradict each other: the first must be shorter",
        ),
    ] {
        assert_eq!(link(text).unwrap_err(), want);
    }
    assert_eq!(link("max_message = '1M'").unwrap().limits.max_frame_bytes, 1_000_000);
}

#[test]
fn a_bridge_without_memory_for_the_longest_message_each_way_is_refused() {
    let bridge =
        |more| bridge(&format!("listen = 'ws://127.0.0.1:0'\nconnect = 'ws://127.0.0.1:1'\n{more}")).map(|_| ());
    assert_eq!(bridge("memory = '64MiB'"), Ok(()));
    assert_eq!(
        bridge("memory = '60MiB'").unwrap_err(),
        "memory is \"60MiB\" (file b.toml:3): it needs at least 64MiB, because max_message is 32MiB and one message from \
         each side may arrive at the same time: raise memory, or lower max_message"
    );
    assert_eq!(
        bridge("max_message = '10M'\nmemory_per_token = '16M'").unwrap_err(),
        "max_message is \"10M\" (file b.toml:3): allowed are up to 8060495 bytes, because memory and memory_per_token \
         must hold one message from each side at the same time"
    );
}

#[test]
fn values_of_each_kind_are_read_and_others_refused() {
    fn check<T: Value>(good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(T::parse(text).is_ok(), "{text}");
        }
        for text in bad {
            assert!(T::parse(text).is_err_and(|why| why.contains("allowed")), "{text}");
        }
    }
    let hex = "AB:".repeat(31);
    check::<Fingerprint>(&[&format!("sha256:{hex}ab")], &["", "sha256:", "ab", &format!("sha256:{hex}a"), "sha256:é"]);
    check::<Header>(&["A: b", "A:", "X-a:  b:c "], &["", "A", ": b", "A b: c", "A: b\r\nC: d"]);
    check::<WebOrigin>(&["https://a.example", "http://[::1]:80"], &["*", "a.example", "https://", "https://a/b"]);
    check::<Host>(&["a.example", "a:1", "[::1]:80"], &["", "a/b", "a b", "http://a"]);
    check::<Secret>(&["abc", "A-._~+/="], &["", "a b", "a\n", "é", "a&b"]);
    check::<LogLevel>(&["off", "trace", "warn,breakbulk=debug"], &["", "inof", "a=b", "zzz=", "warn,a="]);
    check::<Roots>(&["native", "webpki", "both"], &["", "mozilla"]);
    check::<Address>(&["ws://h:1", "stdio:", "exec:a b"], &["", "http://h"]);
}

#[test]
fn secrets_are_not_shown() {
    let header = Header::parse("Authorization: hunter2").unwrap();
    assert_eq!(header.text(), "Authorization: (set)");
    assert!(!format!("{header:?}").contains("hunter2"));
    assert_eq!(Secret::parse("hunter2").unwrap().text(), "(set)");
    let address = Address::parse("ws://h:1/?a=b&access_token=hunter2&c=d").unwrap();
    assert_eq!(address.text(), "ws://h:1/?a=b&access_token=…&c=d");
    let layers =
        Layers::new(typed(&[("token", "hunter 2"), ("connect", "http://u:hunter2@h")]), &environment(&[]), file(""));
    for setting in [find("token"), find("connect")] {
        let error = layers.show(setting).unwrap_err().to_string();
        assert!(!error.contains("hunter") && error.contains("allowed"), "{error}");
    }
}

/// The tables in the handbook, from the table here.
#[test]
fn the_page_on_configuration_has_every_setting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- settings -->\n", "<!-- end of settings -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let want = format!("{before}{begin}{}{end}{after}", tables());
    if std::env::var_os("RENEW_DOCS").is_some() {
        std::fs::write(path, &want).unwrap();
    } else {
        assert!(
            page == want,
            "docs/configuration.md is out of date; renew it: RENEW_DOCS=1 cargo test -p breakbulk-cli"
        );
    }
}

fn tables() -> String {
    let mut text = String::new();
    let all: Vec<&Setting> = all().collect();
    for group in all.chunk_by(|one, other| one.group == other.group) {
        let heading = group[0].group;
        text.push_str(&format!("\n### {heading}\n\n| Key | Kind | Default | |\n|---|---|---|---|\n"));
        for setting in group {
            let choices = (setting.shape.choices)();
            let kind = match (setting.shape.arity, choices.is_empty() || choices == <&Preset as Value>::choices()) {
                (Arity::Switch, _) => "`true` or `false`".to_owned(),
                (_, false) => choices.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
                (Arity::Many { .. }, true) => format!("list of {}", setting.shape.name),
                (_, true) => setting.shape.name.to_owned(),
            };
            let default = match setting.shape.arity {
                Arity::One | Arity::Switch => format!("`{}`", setting.default),
                Arity::Optional | Arity::Many { .. } => setting.default.to_owned(),
            };
            let doc = setting.paragraphs().join(" ").replace('|', "\\|");
            text.push_str(&format!("| `{}` | {kind} | {default} | {doc} |\n", setting.key));
        }
    }
    text.push('\n');
    text
}

fn find(key: &str) -> &'static Setting {
    super::find(key).unwrap()
}
