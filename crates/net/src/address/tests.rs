//! Addresses as typed, as proven, and back.

use proptest::prelude::*;

use super::*;
use crate::listen::TokenError;

fn parse(text: &str) -> Address {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn target(text: &str) -> String {
    match parse(text).transport {
        Transport::WebSocket { target, .. } => target,
        transport => panic!("{transport:?}"),
    }
}

fn web_socket(tls: bool, host: &str, port: u16, target: &str) -> Transport {
    Transport::WebSocket { tls, host: host.to_owned(), port, target: target.to_owned() }
}

#[test]
fn every_way_is_read() {
    let exec = |words: &[&str]| Transport::Exec(words.iter().map(|word| (*word).to_owned()).collect());
    for (text, transport) in [
        ("ws://localhost:9000", web_socket(false, "localhost", 9000, "/")),
        ("wss://Relay.Example/a/b?c=d", web_socket(true, "relay.example", 443, "/a/b?c=d")),
        ("WS://127.0.0.1:0/", web_socket(false, "127.0.0.1", 0, "/")),
        ("ws://[::1]:9000?x", web_socket(false, "::1", 9000, "/?x")),
        ("ws://[2001:db8::1]", web_socket(false, "2001:db8::1", 80, "/")),
        ("ws://h/@scope/x?y=a@b", web_socket(false, "h", 80, "/@scope/x?y=a@b")),
        ("unix:/run/agent.sock", Transport::Unix("/run/agent.sock".into())),
        ("unix:agent.sock?dialect=stdio", Transport::Unix("agent.sock".into())),
        ("stdio:", Transport::Stdio),
        ("stdio:?dialect=stdio", Transport::Stdio),
        ("exec:my-server", exec(&["my-server"])),
        ("exec: my-server '--greeting=a b' c\\ d", exec(&["my-server", "--greeting=a b", "c d"])),
        (
            "exec:?dialect=stdio&cap=65536 my-server --url http://x?cap=1",
            exec(&["my-server", "--url", "http://x?cap=1"]),
        ),
        ("exec:'?odd'", exec(&["?odd"])),
    ] {
        assert_eq!(parse(text).transport, transport, "{text}");
    }
}

#[test]
fn our_options_are_taken_out_and_the_rest_stays_byte_for_byte() {
    for (text, left) in [
        ("ws://h/p?b=2&cap=900000&a=%20+&dialect=ahp&b=1", "/p?b=2&a=%20+&b=1"),
        ("ws://h?cap=1M", "/"),
        ("ws://h/?preset=nats&token=a=b?c/d", "/?token=a=b?c/d"),
        ("ws://h/p?", "/p?"),
        ("ws://h/p?&cap=1M", "/p?"),
        ("ws://h/p?a&&b", "/p?a&&b"),
        ("ws://h/cap=1?Cap=2&%63ap=3", "/cap=1?Cap=2&%63ap=3"),
        ("ws://h/p?reset=1&map=2&%63app=3", "/p?reset=1&map=2&%63app=3"),
    ] {
        assert_eq!(target(text), left, "{text}");
    }
}

#[test]
fn a_cap_is_the_named_one_or_the_presets() {
    for (text, cap) in [
        ("ws://h?cap=64KiB", Some(65_536)),
        ("ws://h?preset=web-pubsub", Some(900_000)),
        ("ws://h?preset=web-pubsub&cap=5k", Some(5_000)),
        ("ws://h?cap=5k&preset=web-pubsub", Some(5_000)),
        ("exec:?preset=asyncio-line x", Some(65_536)),
        ("ws://h", None),
    ] {
        assert_eq!(parse(text).cap, cap, "{text}");
    }
}

#[test]
fn a_dialect_is_the_named_one_or_what_the_way_suggests() {
    for (text, dialect) in [
        ("ws://h", Dialect::Plain),
        ("ws://h?cap=900000", Dialect::Ahp),
        ("wss://h?preset=web-pubsub", Dialect::Ahp),
        ("wss://h?preset=web-pubsub&dialect=plain", Dialect::Plain),
        ("ws://h?dialect=cep22", Dialect::Cep22),
        ("exec:?cap=65536 x", Dialect::Plain),
        ("stdio:?dialect=stdio", Dialect::Stdio),
        ("unix:/s?dialect=ahp", Dialect::Ahp),
    ] {
        assert_eq!(parse(text).effective_dialect(), dialect, "{text}");
    }
}

#[test]
fn each_mistake_has_its_name() {
    use AddressError as E;
    let text = str::to_owned;
    let unknown = |scheme: &str, likely: Option<&str>| E::UnknownScheme {
        scheme: scheme.to_owned(),
        likely: likely.map(str::to_owned),
    };
    for (address, error) in [
        ("", E::Empty),
        (" ", E::Empty),
        ("4140", unknown("4140", Some("ws://127.0.0.1:4140"))),
        ("foo", unknown("foo", None)),
        ("localhost", unknown("localhost", Some("ws://localhost"))),
        ("stdin", unknown("stdin", Some("stdio:"))),
        ("exec", unknown("exec", Some("exec:COMMAND"))),
        ("unix", unknown("unix", Some("unix:PATH"))),
        ("npx -y server", unknown("npx", Some("exec:npx -y server"))),
        ("./server --token s3cret", unknown(".", Some("exec:./server --token …"))),
        ("ws://h?capp=1", E::UnknownOption { name: text("capp"), likely: Some("cap") }),
        ("ws://h/p?a=1&dailect=ahp", E::UnknownOption { name: text("dailect"), likely: Some("dialect") }),
        ("localhost:9000", unknown("localhost", Some("ws://localhost:9000"))),
        ("127.0.0.1", unknown("127.0.0.1", Some("ws://127.0.0.1"))),
        ("[::1]:9000/x?token=s3cret", unknown("[", Some("ws://[::1]:9000"))),
        ("http://h:1/x?token=s3cret#s3cret", unknown("http", Some("ws://h:1"))),
        ("https://h", unknown("https", Some("wss://h"))),
        ("http://me:s3cret@h", unknown("http", None)),
        ("ws:h", unknown("ws:", Some("ws://h"))),
        ("/run/agent.sock", unknown("", Some("unix:/run/agent.sock"))),
        ("stdio", unknown("stdio", Some("stdio:"))),
        ("ws://me:s3cret@h/", E::UserInfo { host: text("h") }),
        ("ws://a@b@h:1", E::UserInfo { host: text("h:1") }),
        ("ws://me:s3cret/s3cret@h/", E::UserInfo { host: text("h") }),
        ("ws://me:s3cret?s3cret@h:1/@x", E::UserInfo { host: text("x") }),
        ("ws://", E::Host(text(""))),
        ("ws://:80", E::Host(text(""))),
        ("ws://a b/", E::Host(text("a b"))),
        ("ws://::1/", E::Host(text(":"))),
        ("ws://[::1", E::Host(text("[:"))),
        ("ws://h:", E::Port(text(""))),
        ("ws://h:+1", E::Port(text("+1"))),
        ("ws://h:65536", E::Port(text("65536"))),
        ("ws://h/a b", E::Target(' ')),
        ("ws://h/?é", E::Target('é')),
        ("ws://h/\r\nX: y", E::Target('\r')),
        ("ws://h/#top", E::Fragment),
        ("ws://h/#token=s3cret", E::Token(TokenError::Length(6))),
        ("ws://h/#token=%FF%FF", E::Token(TokenError::NotVisible)),
        ("ws://h/#token=s3cret-s3cret-s3cret#x y", E::Token(TokenError::NotVisible)),
        ("unix:", E::NoPath),
        ("unix:?cap=1", E::NoPath),
        ("unix:/s?x=1", E::UnknownOption { name: text("x"), likely: None }),
        ("stdio:?token=s3cret", E::UnknownOption { name: text("token"), likely: None }),
        ("stdio:x", E::AfterStdio(text("x"))),
        ("exec:", E::NoCommand),
        ("exec:''", E::NoCommand),
        ("exec:?cap=1k", E::NoCommand),
        ("exec:?caps=1k x", E::UnknownOption { name: text("caps"), likely: Some("cap") }),
        ("exec:a 'b", E::OpenQuote),
        ("ws://h?cap=1&cap=1", E::RepeatedOption("cap")),
        ("ws://h?cap=big", E::Cap { text: text("big"), error: SizeError::Malformed }),
        ("ws://h?cap", E::Cap { text: text(""), error: SizeError::Malformed }),
        ("ws://h?cap=0", E::Cap { text: text("0"), error: SizeError::Zero }),
        ("ws://h?dialect=AHP", E::Dialect(text("AHP"))),
        ("ws://h?preset=pigeon", E::Preset(text("pigeon"))),
    ] {
        let found = address.parse::<Address>().expect_err(address);
        let line = found.to_string();
        assert_eq!(found, error, "{address}");
        assert!(!line.contains('\n') && !line.contains("s3cret"), "{line}");
    }
}

#[test]
fn a_token_is_taken_out_of_the_fragment_and_never_shown() {
    let token = "s3cret-s3cret-s3cret+/=";
    for text in ["ws://h:1/ahp?a=1&cap=1M#token=s3cret-s3cret-s3cret%2B%2F%3D", "ws://h#token=s3cret-s3cret-s3cret+/="]
    {
        let address = parse(text);
        assert_eq!(address.token.as_ref().map(Token::reveal), Some(token));
        let (shown, debug) = (address.to_string(), format!("{address:?}"));
        assert!(
            shown.ends_with("#token=…") && !shown.contains("s3cret") && !debug.contains("s3cret"),
            "{shown} {debug}"
        );
    }
    assert_eq!(target("ws://h:1/ahp?a=1#token=s3cret-s3cret-s3cret"), "/ahp?a=1");
}

#[test]
fn an_error_says_what_is_allowed() {
    let line = |text: &str| text.parse::<Address>().unwrap_err().to_string();
    assert_eq!(line("ws://h?dialect=x"), r#"unknown dialect "x": allowed are ahp, cep22, stdio and plain"#);
    assert!(line("ws://h?preset=x").contains("allowed are ably, api-gateway, "));
    assert!(line("ws://me:s3cret@h").contains("header"));
    assert_eq!(
        line("127.0.0.1:0"),
        "unknown scheme \"127.0.0.1\"; did you mean ws://127.0.0.1:0 ? \
         allowed are ws://HOST:PORT, wss://HOST:PORT, unix:PATH, stdio: and exec:COMMAND"
    );
}

#[test]
fn what_is_shown_has_no_secrets() {
    for (text, shown) in [
        ("wss://h/p?access_token=s3cret&x=1&cap=1k", "wss://h/p?access_token=…&x=1&cap=1000"),
        ("exec:?cap=1k serve --token s3cret", "exec:?cap=1000 serve --token …"),
    ] {
        let address = parse(text);
        assert_eq!(address.to_string(), shown);
        assert!(!format!("{address:?}").contains("s3cret"));
    }
}

prop_compose! {
    fn query()(parts in prop::collection::vec("([a-z%]{1,4}(=[A-Za-z0-9%+=?/]{0,6})?)?", 0..4)) -> Option<String> {
        (!parts.is_empty()).then(|| parts.join("&"))
    }
}

prop_compose! {
    fn our_options()(
        preset in prop::option::of(0..Preset::ALL.len()),
        cap in prop::option::of(1..=u64::MAX),
        dialect in prop::option::of(prop::sample::select(vec![Dialect::Ahp, Dialect::Cep22, Dialect::Stdio, Dialect::Plain])),
        private in prop::option::of("[ -~é\t]{1,12}".prop_map(|path| PrivateOption::File(path.into()))),
    ) -> Options {
        Options { preset: preset.map(|at| &Preset::ALL[at]), cap, dialect, private }
    }
}

fn transport() -> impl Strategy<Value = Transport> {
    let host = prop_oneof![
        "[a-z]{1,8}(\\.[a-z]{1,5}){0,2}",
        any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string())
    ];
    let web_socket = (any::<bool>(), host, any::<u16>(), "(/[a-z%A-Z0-9.~-]{0,5}){1,3}", query()).prop_map(
        |(tls, host, port, path, query)| {
            let target = query.map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
            Transport::WebSocket { tls, host, port, target }
        },
    );
    let unix = "[^?\\x00]{1,20}".prop_map(|path| Transport::Unix(path.into()));
    let exec = ("[^=\\x00-]{1,8}", prop::collection::vec("[^\\x00-]{0,8}", 0..4))
        .prop_map(|(program, words)| Transport::Exec(std::iter::once(program).chain(words).collect()));
    prop_oneof![web_socket, unix, Just(Transport::Stdio), exec]
}

/// Whether something is hidden when it is shown, or is one of our own options.
fn is_plain(transport: &Transport) -> bool {
    let shown = format!("{transport:?}");
    let own = ["cap", "dialect", "preset", "private"];
    !shown.contains('…')
        && !matches!(transport, Transport::WebSocket { target, .. } if target.split(['?', '&']).any(|part| own.iter().any(|name| part.split('=').next() == Some(name))))
}

proptest! {
    #[test]
    fn what_is_shown_parses_back(transport in transport().prop_filter("plain", is_plain), options in our_options()) {
        let Options { dialect, cap, preset, private } = options;
        let cap = cap.or(preset.map(|preset| preset.cap));
        let address = Address { transport, dialect, cap, preset, token: None, private };
        let shown = address.to_string();
        prop_assert_eq!(shown.parse::<Address>(), Ok(address), "{}", shown);
    }

    #[test]
    fn no_text_causes_a_panic(text in "(ws://|wss://|unix:|stdio:|exec:)?[\\PC?&=@:/\\[\\]#%]{0,40}") {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string().contains('…') || address.to_string().parse() == Ok(address), true);
        }
    }
}

#[test]
fn a_way_knows_what_it_is() {
    let facts = |text: &str| {
        let transport = text.parse::<Address>().unwrap().transport;
        [transport.is_web_socket(), transport.is_tls(), transport.is_stdio(), transport.is_single()]
    };
    assert_eq!(facts("ws://127.0.0.1:9000"), [true, false, false, false]);
    assert_eq!(facts("wss://127.0.0.1:9000"), [true, true, false, false]);
    assert_eq!(facts("unix:/tmp/socket"), [false, false, false, false]);
    assert_eq!(facts("stdio:"), [false, false, true, true]);
    assert_eq!(facts("exec:cat"), [false, false, false, true]);
}

#[test]
fn private_names_a_file_or_a_pairing_code_which_is_shown_nowhere() {
    use crate::private::{CodeError, HostKey, PrivateOption};
    let code = HostKey::generate().unwrap().pairing_code();
    let file = |path: &str| Some(PrivateOption::File(path.into()));
    for (text, private) in [
        ("ws://h/p?a=1&private=host.key&b=2", file("host.key")),
        ("wss://h?private=/a%20b/%26.key", file("/a b/&.key")),
        ("unix:/s?private=k", file("k")),
        ("stdio:?private=k", file("k")),
        ("exec:?private=k my-server", file("k")),
        ("webpubsub:x?hub=h&private=k", file("k")),
        ("ws://h", None),
    ] {
        let address = parse(text);
        assert_eq!(address.private, private, "{text}");
        assert_eq!(parse(&address.to_string()).private, private, "{text}");
    }
    assert_eq!(target("ws://h/p?a=1&private=host.key&b=2"), "/p?a=1&b=2");
    let secret = parse(&format!("ws://h?private={}", code.reveal()));
    assert_eq!(secret.private, Some(PrivateOption::Code(code.clone())));
    assert_eq!(secret.to_string(), "ws://h/?private=…");
    assert!(!format!("{secret:?}").contains(&code.reveal()[8..20]));
    for (text, error) in [
        ("ws://h?private=".to_owned(), AddressError::PrivateOfNothing),
        ("ws://h?private=a&private=b".to_owned(), AddressError::RepeatedOption("private")),
        (format!("ws://h?private={}x", code.reveal()), AddressError::Private(CodeError::Mistyped)),
        ("ws://h?private=key1-x".to_owned(), AddressError::Private(CodeError::HostKey)),
        ("nostr:wss://r?key=k&private=k".to_owned(), AddressError::PrivateOn("nostr")),
    ] {
        assert_eq!(text.parse::<Address>().unwrap_err(), error, "{text}");
    }
}
