//! What passes through as it is, and the tokens of applications.

use serde_json::json;

use super::{Endpoint, known, request};
use crate::cep22::Config;
use crate::machine::Machine;

#[test]
fn other_cvm_types_and_ordinary_progress_pass_unchanged() {
    let mut end = Endpoint::new(known(), 9999);
    let texts = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"cvm":{"type":"open-stream","frameType":"start"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":0.5,"message":"half"}}"#,
        r#"{"jsonrpc":"2.0","method":"other","params":{"cvm":{"type":"oversized-transfer","frameType":"start"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/progress","params":{"cvm":{"type":"oversized-transfer"}}}"#,
    ];
    texts.iter().for_each(|text| end.take(*text));
    assert_eq!(end.messages(), texts);
    assert!(end.frames().is_empty());
}

#[test]
fn the_application_gets_its_token_back_as_it_wrote_it() {
    let mut end = Endpoint::new(known(), 9999);
    end.send_to(1, request(1, &json!(5), ""), "p");
    end.frames();
    end.events();
    let progress = |token: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
        )
    };
    end.take_from(progress("\"5\""), "p", "a");
    end.take_from(progress("\"5\""), "q", "b");
    assert_eq!(end.messages(), [progress("5"), progress("\"5\"")]);
}

#[test]
fn a_gateway_adds_a_token_where_there_is_none_and_swallows_its_progress() {
    let config = Config { inject_tokens: true, seed: 0xab, ..known() };
    let mut end = Endpoint::new(config, 9999);
    let cases = [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@}}}"#,
        ),
        (
            r#"{"method":"m","params":{ },"id":1,"jsonrpc":"2.0"}"#,
            r#"{"method":"m","params":{"_meta":{"progressToken":@} },"id":1,"jsonrpc":"2.0"}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@},"a":1}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"x":{}}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":@,"x":{}}}}"#,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken": null, "x":1}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken": @, "x":1}}}"#,
        ),
    ];
    for (i, (text, want)) in (1..).zip(cases) {
        end.send(i, text);
        assert_eq!(end.next().unwrap().text, want.replace('@', &format!("\"bb-ab-{i:x}\"")));
    }
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1}}}"#,
        r#"{"jsonrpc":"2.0","method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1}"#,
    ] {
        end.send(9, text);
        assert_eq!(end.next().unwrap().text, text);
    }
    end.events();
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"bb-ab-2","progress":1}}"#;
    end.take(progress);
    end.take(progress.replace("bb-ab-2", "1"));
    assert_eq!(end.messages(), [progress.replace("\"bb-ab-2\"", "1")]);
    assert_eq!(end.machine.counters().count("progress-swallowed"), 1);
}
