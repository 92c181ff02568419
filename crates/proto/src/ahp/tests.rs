//! Facts about a whole connection, and about two of them with a perfect link in between.

mod handshake;
mod odd;
mod refused;
mod waits;

use std::time::{Duration, Instant};

use super::*;
use crate::budget::{Budget, BudgetConfig};
use crate::limits::LimitsConfig;
use crate::machine::Capacity;

const SECOND: Duration = Duration::from_secs(1);

fn limits(change: impl FnOnce(&mut LimitsConfig)) -> Limits {
    let mut config = LimitsConfig { max_frame_bytes: 1024, max_message_bytes: 1 << 20, ..LimitsConfig::default() };
    change(&mut config);
    Limits::prove(config, &BudgetConfig::default()).unwrap()
}

fn connection(role: Role, change: impl FnOnce(&mut Config)) -> Connection {
    let mut config = Config::new(role, limits(|_| {}), [7; 32]);
    change(&mut config);
    Connection::new(config, Budget::default().account(Some("someone")))
}

/// A connection whose peer takes what we take, without a handshake.
fn agreed(role: Role) -> Connection {
    connection(role, |config| config.agreed = Some(Chunking::from(&config.limits)))
}

fn frames(connection: &mut Connection, now: Instant) -> Vec<Bytes> {
    let frame = |transmit| match transmit {
        Transmit::Frame { bytes, .. } => Some(bytes.to_bytes()),
        Transmit::Close(_) => None,
    };
    std::iter::from_fn(|| connection.poll_transmit(now).and_then(frame)).collect()
}

fn events(connection: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| connection.poll_event()).filter(|event| !matches!(event, Event::Progress(_))).collect()
}

fn text(message: &Message) -> String {
    String::from_utf8(message.to_bytes().to_vec()).unwrap()
}

fn messages(connection: &mut Connection) -> Vec<String> {
    let message = |event| match event {
        Event::Message { message, .. } => Some(text(&message)),
        _ => None,
    };
    events(connection).into_iter().filter_map(message).collect()
}

/// Moves everything from one to the other; returns the frames' lengths.
fn pass(from: &mut Connection, to: &mut Connection, now: Instant) -> Vec<usize> {
    let frames = frames(from, now);
    let lens = frames.iter().map(Bytes::len).collect();
    frames.into_iter().for_each(|frame| to.handle(Input::frame(frame), now));
    lens
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","protocolVersions":["0.3.0","0.2.0"],"clientId":"c1"}}"#;
const INITIALIZED: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"0.3.0","serverSeq":0,"snapshots":[]}}"#;

fn action(channel: &str, seq: u64, len: usize) -> String {
    let body = "x".repeat(len);
    format!(
        r#"{{"jsonrpc":"2.0","method":"action","params":{{"channel":"{channel}","action":"{body}","serverSeq":{seq}}}}}"#
    )
}

#[test]
fn a_handshake_brings_segments_to_applications_that_never_heard_of_them() {
    let now = Instant::now();
    let (mut client, mut server) = (connection(Role::Client, |_| {}), connection(Role::Server, |_| {}));
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    pass(&mut client, &mut server, now);
    assert_eq!(messages(&mut server), [INITIALIZE]);
    server.handle(Input::send(Ticket(1), INITIALIZED), now);
    pass(&mut server, &mut client, now);
    assert_eq!(messages(&mut client), [INITIALIZED]);
    assert!(client.peer().is_some_and(|peer| peer.settled_cursor) && server.peer().is_some());

    let large = action("a", 5, 100_000);
    server.handle(Input::send(Ticket(2), large.clone()), now);
    let lens = pass(&mut server, &mut client, now);
    assert!(lens.len() > 100 && lens.iter().all(|len| *len <= 1024), "{lens:?}");
    assert_eq!(messages(&mut client), std::slice::from_ref(&large));
    assert_eq!((client.cursor(), client.settled()), (Some(5), 2));
    client.handle(Input::send(Ticket(3), large.clone()), now);
    pass(&mut client, &mut server, now);
    assert_eq!(messages(&mut server), [large]);
}

#[test]
fn thirty_megabytes_pass_in_frames_of_64_kib() {
    let now = Instant::now();
    let wide = |config: &mut Config| {
        config.limits = limits(|limits| {
            limits.max_frame_bytes = 65_536;
            limits.max_message_bytes = 32 << 20;
        });
        config.agreed = Some(Chunking::from(&config.limits));
    };
    let (mut server, mut client) = (connection(Role::Server, wide), connection(Role::Client, wide));
    let large = action("a", 5, 30 << 20);
    server.handle(Input::send(Ticket(1), large.clone()), now);
    let lens = pass(&mut server, &mut client, now);
    assert!(lens.len() < 700 && lens.iter().all(|len| *len <= 65_536));
    assert!(messages(&mut client) == [large]);
}

#[test]
fn the_first_page_of_the_rfc_holds_for_every_length_around_the_cap() {
    let now = Instant::now();
    for len in 800..1200 {
        let (mut server, mut client) = (agreed(Role::Server), agreed(Role::Client));
        let message = action("a", 1, len);
        server.handle(Input::send(Ticket(1), message.clone()), now);
        let lens = pass(&mut server, &mut client, now);
        assert_eq!(lens.len() == 1, message.len() <= 1024);
        assert_eq!(messages(&mut client), [message]);
        assert!(matches!(events(&mut server)[..], [Event::Sent { ticket: Ticket(1) }]));
    }
}

#[test]
fn a_link_cap_with_overhead_is_never_passed() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    let overhead = crate::machine::Overhead::new(|measure| measure.escaped - measure.bytes + 30);
    server.handle(Input::Capacity(Capacity { cap: 700, overhead }), now);
    server.handle(Input::send(Ticket(1), action("a", 1, 5000)), now);
    server.handle(Input::send(Ticket(2), action("b", 2, 560)), now);
    let frames = frames(&mut server, now);
    assert!(frames.len() > 10);
    assert!(frames.iter().all(|frame| crate::json::escaped_len(frame) + 30 <= 700));
}

#[test]
fn a_swept_groups_late_segment_closes_the_link() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    let mut client = connection(Role::Client, |config| {
        config.agreed = Some(Chunking::from(&config.limits));
        config.delivery = Delivery::Settled;
    });
    server.handle(Input::send(Ticket(1), action("a", 1, 5000)), now);
    let segments = frames(&mut server, now);
    client.handle(Input::frame(segments[0].clone()), now);
    let due = std::iter::successors(Some(now), |now| Some(*now + SECOND)).take(40);
    for now in due {
        client.handle(Input::Timeout, now);
    }
    assert!(matches!(events(&mut client)[..], [Event::Expired { ordinal: 0, .. }]));
    client.handle(Input::frame(segments[1].clone()), now + 41 * SECOND);
    let reason = CloseReason::Violation(Violation::GroupUnknown(1));
    assert!(matches!(client.poll_transmit(now), Some(Transmit::Close(close)) if close == reason));
    assert!(matches!(&events(&mut client)[..], [Event::Closed(close)] if *close == reason));
    assert_eq!(client.settled(), 0);
}

fn padded_initialize(len: usize) -> String {
    INITIALIZE.replace("c1", &"c".repeat(len - INITIALIZE.len() + 2))
}

#[test]
fn after_a_refused_initialize_a_large_request_fails_at_once() {
    let now = Instant::now();
    let mut client = connection(Role::Client, |_| {});
    client.handle(Input::Capacity(Capacity::of(2000)), now);
    client.handle(Input::send(Ticket(1), padded_initialize(2500)), now);
    client.handle(Input::send(Ticket(2), action("a", 1, 3000)), now);
    assert!(frames(&mut client, now).is_empty());
    let failed = |event: &Event| matches!(event, Event::SendFailed { error: SendError::NoSegments { .. }, .. });
    assert_eq!(events(&mut client).iter().filter(|event| failed(event)).count(), 2);
}

#[test]
fn until_the_peer_has_said_what_it_takes_only_what_any_peer_takes_goes() {
    let now = Instant::now();
    let (mut client, mut server) = (connection(Role::Client, |_| {}), connection(Role::Server, |_| {}));
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    client.handle(Input::send(Ticket(2), action("a", 1, 100)), now);
    client.handle(Input::send(Ticket(3), action("a", 2, 900)), now);
    client.handle(Input::send(Ticket(4), action("a", 3, 100)), now);
    assert_eq!(pass(&mut client, &mut server, now).len(), 2);
    server.handle(Input::send(Ticket(1), INITIALIZED), now);
    pass(&mut server, &mut client, now);
    assert_eq!(pass(&mut client, &mut server, now).len(), 2);
    assert_eq!(messages(&mut server).len(), 4);
}

#[test]
fn a_message_of_just_what_any_peer_takes_need_not_wait() {
    let now = Instant::now();
    for (len, goes) in [(512, true), (513, false)] {
        let mut client = connection(Role::Client, |_| {});
        client.handle(Input::send(Ticket(1), INITIALIZE), now);
        frames(&mut client, now);
        client.handle(Input::send(Ticket(2), action("a", 1, len - action("a", 1, 0).len())), now);
        assert_eq!(frames(&mut client, now).len() == 1, goes, "{len}");
    }
}

#[test]
fn only_what_has_to_wait_is_charged_while_it_waits() {
    let (now, budget) = (Instant::now(), Budget::default());
    let limits = limits(|limits| limits.max_frame_bytes = 65_536);
    let config = Config { agreed: Some(Chunking::from(&limits)), ..Config::new(Role::Client, limits, [7; 32]) };
    let mut client = Connection::new(config.clone(), budget.account(Some("someone")));
    let mut server = Connection::new(Config { role: Role::Server, ..config }, budget.account(Some("host")));
    client.handle(Input::frame(action("a", 1, 10_000)), now);
    assert_eq!(budget.held(), 0, "it goes up as it is");
    server.handle(Input::send(Ticket(1), action("a", 2, 100_000)), now);
    let segments = frames(&mut server, now);
    client.handle(Input::frame(segments[0].clone()), now);
    let group = budget.held();
    client.handle(Input::frame(action("b", 3, 10_000)), now);
    assert!((10_000..20_000).contains(&(budget.held() - group)), "{} beside {group}", budget.held());
    segments[1..].iter().for_each(|segment| client.handle(Input::frame(segment.clone()), now));
    assert!((110_000..130_000).contains(&budget.held()), "{}", budget.held());
    assert_eq!(messages(&mut client).len(), 3);
    assert_eq!(budget.held(), 0);
}

/// The frames of an action, in segments.
fn segmented(limits: Limits, seq: u64, len: usize, now: Instant) -> Vec<Bytes> {
    let mut server = connection(Role::Server, |config| {
        (config.limits, config.agreed, config.seed) = (limits, Some(Chunking::from(&limits)), [seq as u8; 32]);
    });
    server.handle(Input::send(Ticket(seq), action("a", seq, len)), now);
    frames(&mut server, now)
}

/// A client with these limits, charged to "someone".
fn client(limits: Limits, delivery: Delivery, budget: &Budget) -> Connection {
    let agreed = Some(Chunking::from(&limits));
    let config = Config { agreed, delivery, ..Config::new(Role::Client, limits, [7; 32]) };
    Connection::new(config, budget.account(Some("someone")))
}

#[test]
fn as_many_groups_of_the_largest_message_as_we_advertise_can_be_open() {
    let now = Instant::now();
    for (message, room) in
        [(4096, 60_000), (100_000, 300_000), (100_000, 310_000), (1 << 20, 5 << 20), (3 << 20, 7 << 20)]
    {
        let config = BudgetConfig { process_bytes: room, principal_bytes: room, floor_bytes: 0 };
        let limits = LimitsConfig { max_frame_bytes: 1024, max_message_bytes: message, ..LimitsConfig::default() };
        let limits = Limits::prove(limits, &config).unwrap();
        let mut client = client(limits, Delivery::Settled, &Budget::new(config));
        let len = usize::try_from(message).unwrap() - action("a", 1, 0).len();
        let groups: Vec<_> = (1..=limits.max_groups).map(|seq| segmented(limits, seq.into(), len, now)).collect();
        assert!(groups.len() > 1 && groups.len() <= 8, "{}", groups.len());
        for n in 0..groups[0].len() {
            groups.iter().for_each(|group| client.handle(Input::frame(group[n].clone()), now));
        }
        let arrived = messages(&mut client);
        assert!(
            arrived.len() == groups.len() && arrived.iter().all(|text| text.len() == len + action("a", 1, 0).len())
        );
    }
}

#[test]
fn time_in_which_we_do_not_read_counts_half_when_a_group_is_evicted() {
    let start = Instant::now();
    // The time that the group has is nearly all of the 30 s.
    let limits = limits(|limits| limits.max_message_bytes = 512 << 10);
    let segments = segmented(limits, 1, 500_000, start);
    for (paused, seconds, goes) in [(false, 10, true), (true, 10, false), (true, 20, true)] {
        let budget = Budget::new(BudgetConfig { process_bytes: 700_000, principal_bytes: 700_000, floor_bytes: 0 });
        let mut client = client(limits, Delivery::Settled, &budget);
        segments.iter().take(segments.len() / 4).for_each(|frame| client.handle(Input::frame(frame.clone()), start));
        client.handle(Input::Paused(paused), start);
        let later = start + seconds * SECOND;
        let other = budget.account(Some("other"));
        let schedule = crate::budget::Schedule { started: later, timeout: SECOND };
        assert!(other.reserve(300_000, schedule).is_err());
        let is_due = client.poll_timeout().is_some_and(|at| at <= later);
        assert_eq!(is_due, goes, "it has to be given up at once, also while it is paused");
        client.handle(Input::Timeout, later);
        let evicted = matches!(client.poll_transmit(later), Some(Transmit::Close(CloseReason::Evicted)));
        assert_eq!(evicted, goes);
    }
}

#[test]
fn what_is_held_back_behind_a_group_makes_room_with_it() {
    let start = Instant::now();
    let limits = limits(|limits| limits.max_frame_bytes = 100_000);
    let budget = Budget::new(BudgetConfig { process_bytes: 700_000, principal_bytes: 700_000, floor_bytes: 0 });
    let mut client = client(limits, Delivery::StartOrder, &budget);
    client.handle(Input::frame(segmented(limits, 1, 120_000, start)[0].clone()), start);
    (2..7).for_each(|seq| client.handle(Input::frame(action("a", seq, 90_000)), start));
    assert!(budget.held() > 550_000);
    let (other, later) = (budget.account(Some("other")), start + 29 * SECOND);
    let schedule = crate::budget::Schedule { started: later, timeout: SECOND };
    assert!(other.reserve(300_000, schedule).is_err());
    client.handle(Input::Timeout, later);
    assert!(matches!(client.poll_transmit(later), Some(Transmit::Close(CloseReason::Evicted))));
    assert_eq!(budget.held(), 0);
    assert!(other.reserve(300_000, schedule).is_ok());
}

#[test]
fn the_time_to_look_at_groups_does_not_move_on_while_frames_come() {
    let start = Instant::now();
    let mut client = agreed(Role::Client);
    client.handle(Input::frame(segmented(limits(|_| {}), 1, 3000, start)[0].clone()), start);
    let due = client.poll_timeout().unwrap();
    for seconds in 1..60 {
        client.handle(Input::frame(r#"{"jsonrpc":"2.0","method":"m"}"#), start + seconds * SECOND);
        assert_eq!(client.poll_timeout(), Some(due));
    }
    client.handle(Input::Timeout, start + 60 * SECOND);
    assert!(events(&mut client).iter().any(|event| matches!(event, Event::Expired { .. })));
}

#[test]
fn segments_are_not_too_long_and_smaller_while_others_wait_and_on_a_slow_link() {
    let now = Instant::now();
    let wide = |config: &mut Config| {
        config.limits = limits(|limits| limits.max_frame_bytes = 900_000);
        config.agreed = Some(Chunking::from(&config.limits));
    };
    let longest = |frames: &[Bytes]| frames.iter().map(Bytes::len).max().unwrap();
    let mut server = connection(Role::Server, wide);
    server.handle(Input::send(Ticket(1), action("a", 1, 910_000)), now);
    assert!((122_870..=122_880).contains(&longest(&frames(&mut server, now))));
    (2..4).for_each(|n| server.handle(Input::send(Ticket(n), action("a", n, 910_000)), now));
    let shared = frames(&mut server, now);
    assert!((60_000..=65_536).contains(&shared[0].len()) && longest(&shared) > 120_000);

    // A hundred kilobytes a second: a twentieth of that is less than what a segment should have.
    let mut later = now;
    (4..11).for_each(|n| server.handle(Input::send(Ticket(n), action("a", n, 99_900)), now));
    while server.poll_transmit(later).is_some() {
        later += SECOND;
    }
    server.handle(Input::send(Ticket(11), action("a", 11, 910_000)), later);
    assert!((16_000..=16_384).contains(&longest(&frames(&mut server, later))));
}

#[test]
fn segments_are_smaller_when_short_messages_have_just_gone() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |config| {
        config.limits = limits(|limits| limits.max_frame_bytes = 200_000);
        config.agreed = Some(Chunking::from(&config.limits));
    });
    let mut first_after = |short: u64, pause: u64, now| {
        (0..short).for_each(|n| server.handle(Input::send(Ticket(n), action("a", n, 10)), now));
        assert_eq!(frames(&mut server, now).len() as u64, short);
        let later = now + Duration::from_millis(pause);
        server.handle(Input::send(Ticket(9), action("b", 9, 900_000)), later);
        frames(&mut server, later)[0].len()
    };
    // One short message is no stream of them.
    assert!(first_after(1, 0, now) > 120_000);
    assert!((60_000..=65_536).contains(&first_after(2, 499, now + SECOND)));
    assert!(first_after(2, 500, now + 3 * SECOND) > 120_000);
}

#[test]
fn an_ordered_response_that_cannot_be_sent_is_answered_and_the_link_lives() {
    let now = Instant::now();
    let mut server = connection(Role::Server, |_| {});
    server.handle(Input::Capacity(Capacity::of(1000)), now);
    server.handle(Input::frame(r#"{"jsonrpc":"2.0","id":5,"method":"subscribe","params":{"channel":"a"}}"#), now);
    server
        .handle(Input::send(Ticket(1), format!(r#"{{"jsonrpc":"2.0","id":5,"result":"{}"}}"#, "x".repeat(5000))), now);
    let sent = frames(&mut server, now);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with(br#"{"jsonrpc":"2.0","id":5,"error":{"code":-32011,"#), "{sent:?}");
    assert!(!events(&mut server).iter().any(|event| matches!(event, Event::Closed(_))));
}

#[test]
fn a_channel_far_back_in_an_action_orders_it_all_the_same() {
    let now = Instant::now();
    let mut server = agreed(Role::Server);
    server.handle(Input::send(Ticket(1), action("a", 1, 9000)), now);
    let late = r#"{"jsonrpc":"2.0","method":"action","params":{"action":"PAD","channel":"a","serverSeq":2}}"#;
    server.handle(Input::send(Ticket(2), late.replace("PAD", &"x".repeat(700))), now);
    let sent = frames(&mut server, now);
    assert!(sent.last().is_some_and(|frame| frame.starts_with(br#"{"jsonrpc":"2.0","method":"action""#)), "{sent:?}");
}

#[test]
fn a_request_is_known_by_its_id_and_method_wherever_they_stand() {
    let now = Instant::now();
    for request in [
        r#"{"jsonrpc":"2.0","method":"subscribe","params":{"channel":"a","pad":"PAD"},"id":7}"#,
        r#"{"jsonrpc":"2.0","id":7,"pad":"PAD","method":"subscribe","params":{"channel":"a"}}"#,
    ] {
        let (mut client, mut server) = (agreed(Role::Client), agreed(Role::Server));
        client.handle(Input::send(Ticket(1), request.replace("PAD", &"x".repeat(700))), now);
        frames(&mut client, now);
        server.handle(Input::send(Ticket(1), action("a", 1, 3000)), now);
        let segments = frames(&mut server, now);
        client.handle(Input::frame(segments[0].clone()), now);
        client.handle(Input::frame(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), now);
        assert!(messages(&mut client).is_empty(), "the answer waits for what began before it: {request}");
        segments[1..].iter().for_each(|segment| client.handle(Input::frame(segment.clone()), now));
        assert_eq!(messages(&mut client).len(), 2);
    }
}

#[test]
fn a_request_of_the_server_with_the_id_of_our_handshake_is_not_its_answer() {
    let now = Instant::now();
    let (mut client, mut server) = (connection(Role::Client, |_| {}), connection(Role::Server, |_| {}));
    client.handle(Input::send(Ticket(1), INITIALIZE), now);
    pass(&mut client, &mut server, now);
    client.handle(Input::frame(r#"{"jsonrpc":"2.0","id":1,"method":"resourceRead"}"#), now);
    server.handle(Input::send(Ticket(1), INITIALIZED), now);
    pass(&mut server, &mut client, now);
    assert!(client.peer().is_some());
}

#[test]
fn a_message_of_exactly_the_limit_arrives_in_any_spelling() {
    let now = Instant::now();
    // Where a question mark ends three bytes, base64 has a slash, which may be escaped.
    let message = action("a", 1, 0).replace(r#""action":"""#, &format!(r#""action":"{}""#, "?".repeat(3000)));
    for (limit, arrives) in [(message.len(), true), (message.len() - 1, false)] {
        let ours = limits(|limits| {
            (limits.max_frame_bytes, limits.max_message_bytes) = (2048, u64::try_from(limit).unwrap());
        });
        let mut client = connection(Role::Client, |config| {
            (config.limits, config.agreed) = (ours, Some(Chunking::from(&ours)));
        });
        let theirs = Chunking { max_frame_bytes: 1500, max_message_bytes: 1 << 20, ..Chunking::from(&ours) };
        let mut server = connection(Role::Server, |config| config.agreed = Some(theirs));
        server.handle(Input::send(Ticket(1), message.clone()), now);
        for frame in frames(&mut server, now) {
            let (front, data) = frame.split_at(130);
            let escaped = String::from_utf8(data.to_vec()).unwrap().replace('/', r"\/");
            client.handle(Input::frame([front, escaped.as_bytes()].concat()), now);
        }
        assert_eq!(messages(&mut client).len() == 1, arrives, "{limit}");
    }
}

#[test]
fn a_message_is_refused_that_would_take_a_millisecond_too_long() {
    let now = Instant::now();
    // What becomes of a large message on a link that took a small one each second, if it may take so long.
    let send = |timeout: Duration| {
        let mut server = connection(Role::Server, |config| {
            let chunking = Chunking::from(&limits(|limits| limits.max_frame_bytes = 200_000));
            config.agreed = Some(Chunking { group_timeout: timeout, ..chunking });
        });
        let mut later = now;
        (0..7).for_each(|n| server.handle(Input::send(Ticket(n), action("a", n, 99_900)), now));
        while server.poll_transmit(later).is_some() {
            later += SECOND;
        }
        server.handle(Input::send(Ticket(9), action("a", 9, 900_000)), later);
        frames(&mut server, later)
    };
    let sent = send(100 * SECOND);
    let wire_bytes = sent.len() * sent.iter().map(Bytes::len).max().unwrap();
    let needed = Duration::from_millis((wire_bytes * 1000 / action("a", 0, 99_900).len()) as u64);
    assert_eq!(send(needed).len(), sent.len());
    assert!(send(needed - Duration::from_millis(1)).is_empty());
}
