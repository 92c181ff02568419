//! A client that leaves and comes back holds what one holds that never left.

use breakbulk_lifecycle::projection::Change;
use breakbulk_lifecycle::v2::wire::{Body, Event};
use breakbulk_lifecycle::v2::{Block, Config, MessageState, Model, Projector};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::agent::deeds;
use crate::grammar::Grammar;
use crate::oracle::{of_ahp, of_model};
use crate::properties::begun;
use crate::world::{CHAT, World, apply, config};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_cut_between_any_two_events_is_mended_by_what_comes_after_last_seq(
        deeds in deeds(), cut in any::<Index>(), again in any::<Index>(),
    ) {
        let world = begun(deeds);
        let all: Vec<Event> = world.events().into_iter().flatten().collect();
        let stayed = model(&all);
        let mut left = model(&all[..cut.index(all.len())]);
        // Twice, the second time while it catches up.
        for cut in [again.index(all.len()), all.len()] {
            let after = left.last_seq().unwrap_or(0);
            let Some(missed) = replay(&world, after) else {
                world.now.snapshot(&world.projector()).iter().for_each(|event| {
                    left.apply(event);
                });
                break;
            };
            prop_assert!(missed.iter().all(|event| event.seq > after));
            let sent: Vec<Event> = all.iter().filter(|event| event.seq > after).cloned().collect();
            prop_assert_eq!(but_for_queues(&missed), but_for_queues(&sent));
            missed.iter().take(cut).for_each(|event| {
                left.apply(event);
            });
        }
        prop_assert_eq!(known(left.state()), known(stayed.state()));
        prop_assert_eq!(left.last_seq(), stayed.last_seq());
    }

    #[test]
    fn a_projector_that_was_rewound_to_a_boundary_knows_what_is_open_now(deeds in deeds()) {
        let world = begun(deeds);
        let since = &world.log[boundary(&world, u64::MAX).unwrap()..];
        let mut projector = world.now.rewind(since);
        since.iter().for_each(|entry| drop(apply(&mut projector, entry)));
        prop_assume!(world.now.agrees(&projector));
        let shown = model(&world.now.snapshot(&projector));
        let wanted = model(&world.now.snapshot(&world.projector()));
        prop_assert_eq!(shown.state(), wanted.state());
    }

    #[test]
    fn a_snapshot_after_any_entry_is_what_a_client_holds_that_saw_everything(
        deeds in deeds(), cut in any::<Index>(), max_event_bytes in 1_200_usize..3_000,
    ) {
        let world = begun(deeds);
        let cut = cut.index(world.log.len());
        let small = Config { max_event_bytes, ..config() };
        for config in [config(), small] {
            let mut projector = Projector::new(config);
            let (mut stayed, mut came) = (Model::new("s1"), Model::new("s1"));
            for (at, entry) in world.log.iter().enumerate() {
                for event in apply(&mut projector, entry) {
                    stayed.apply(&event);
                    if at > cut {
                        prop_assert!(came.apply(&event));
                    }
                }
                if at == cut {
                    let mut grammar = Grammar::of_snapshot();
                    for event in world.then[at].snapshot(&projector) {
                        grammar.check(&event);
                        prop_assert!(came.apply(&event));
                    }
                }
                if at >= cut {
                    prop_assert_eq!(known(came.state()), known(stayed.state()));
                }
            }
        }
    }

    #[test]
    fn a_snapshot_in_pieces_while_the_log_goes_on_is_what_a_client_holds_that_saw_everything(
        deeds in deeds(), begun_at in any::<Index>(), page in 1_usize..4,
    ) {
        let world = begun(deeds);
        let at = begun_at.index(world.log.len());
        let mut projector = Projector::new(config());
        let stayed = model(&world.events().into_iter().flatten().collect::<Vec<_>>());
        let mut events = Vec::new();
        let (before, after) = world.log.split_at(at + 1);
        before.iter().for_each(|entry| drop(apply(&mut projector, entry)));
        let head = &world.then[at];
        let mut pieces = projector.snapshot_head(&head.session, head.seq, head.at_ms, &mut events);
        // What is over by the end is told; turns that are taken back meanwhile would need a new beginning.
        prop_assume!(!after.iter().any(|entry| matches!(&entry.change, Change::Action(action)
            if matches!(**action, ahp_types::actions::StateAction::ChatTruncated(_)
                | ahp_types::actions::StateAction::ChatTurnResume(_)))));
        after.iter().for_each(|entry| drop(apply(&mut projector, entry)));
        let chats = &world.now.chats;
        for turns in chats[CHAT].turns.chunks(page) {
            projector.snapshot_turns(&mut pieces, turns, &|uri| chats.get(uri), &mut events);
        }
        let mut now = world.now.clone();
        now.chats.get_mut(CHAT).unwrap().turns.clear();
        now.with(|snapshot| projector.snapshot_rest(pieces, snapshot, &mut events));
        let (last, others) = events.split_last().unwrap();
        prop_assert!(!last.more && others.iter().all(|event| event.more));
        prop_assert!(events.is_sorted_by(|a, b| (a.seq, a.sub) < (b.seq, b.sub) && a.ts <= b.ts));
        let came = model(&events);
        prop_assert_eq!(known(came.state()), known(stayed.state()));
        prop_assert_eq!(came.last_seq(), Some(world.now.seq));
    }

    #[test]
    fn a_snapshot_cut_off_anywhere_and_asked_for_again_is_whole(
        deeds in deeds(), cut in any::<Index>(),
    ) {
        let world = begun(deeds);
        let events = world.now.snapshot(&world.projector());
        let whole = model(&events);
        let mut cut_off = model(&events[..cut.index(events.len())]);
        prop_assert_eq!(cut_off.last_seq(), None);
        events.iter().for_each(|event| {
            cut_off.apply(event);
        });
        prop_assert_eq!(cut_off.state(), whole.state());
        prop_assert_eq!(cut_off.last_seq(), Some(world.now.seq));
    }

    #[test]
    fn a_projector_that_knows_only_the_state_shows_what_the_reducers_hold_from_there_on(
        deeds in deeds(), cut in any::<Index>(),
    ) {
        let world = begun(deeds);
        let cut = 1 + cut.index(world.log.len() - 1);
        let mut projector = world.then[cut].resume(config());
        let mut came = Model::new("s1");
        world.then[cut].snapshot(&projector).iter().for_each(|event| {
            came.apply(event);
        });
        for (entry, state) in world.log.iter().zip(&world.then).skip(cut) {
            if entry.seq > world.then[cut].seq {
                apply(&mut projector, entry).iter().for_each(|event| {
            came.apply(event);
        });
            }
            let ahp = of_ahp(&state.chats, CHAT);
            prop_assert_eq!(of_model(came.state(), &ahp), ahp);
            let runs = state.chats[CHAT].active_turn.is_some();
            prop_assert_eq!(came.state().running, runs);
            if !runs {
                prop_assert!(came.state().current.is_none());
            }
        }
    }

    #[test]
    fn an_event_that_comes_twice_changes_nothing(
        deeds in deeds(), twice in vec((any::<Index>(), any::<Index>()), 0..20),
    ) {
        let world = begun(deeds);
        let mut all: Vec<Event> = world.then[1].snapshot(&world.then[1].resume(config()));
        all.extend(replay(&world, world.then[1].seq).unwrap());
        let once = model(&all);
        let mut often = Model::new("s1");
        for (at, event) in all.iter().enumerate() {
            often.apply(event);
            for (_, which) in twice.iter().filter(|(when, _)| when.index(all.len()) == at) {
                let before = often.state().clone();
                prop_assert!(!often.apply(&all[which.index(at + 1)]));
                prop_assert_eq!(&before, often.state());
            }
        }
        prop_assert_eq!(often.state(), once.state());
    }
}

fn model(events: &[Event]) -> Model {
    let mut model = Model::new("s1");
    events.iter().for_each(|event| {
        model.apply(event);
    });
    model
}

/// What a host does for a client that comes back: it reads the log from the last boundary up to `after`, and sends what comes
/// after. All that it has beside the log is the state as it is now. None if that is not enough.
fn replay(world: &World, after: u64) -> Option<Vec<Event>> {
    let boundary = boundary(world, after);
    let (mut projector, since) = match boundary {
        Some(at) => (world.now.rewind(&world.log[at..]), &world.log[at..]),
        None => (Projector::new(config()), &world.log[..]),
    };
    let events =
        since.iter().flat_map(|entry| apply(&mut projector, entry)).filter(|event| event.seq > after).collect();
    world.now.agrees(&projector).then_some(events)
}

/// The last boundary up to a seq, at which no sub-agent is at work.
fn boundary(world: &World, up_to: u64) -> Option<usize> {
    world.then.iter().zip(&world.log).rposition(|(state, entry)| {
        let is_boundary = matches!(&entry.change, Change::Action(action) if Projector::is_boundary(action));
        let is_quiet = state.chats.iter().all(|(uri, chat)| uri == CHAT || chat.active_turn.is_none());
        state.seq <= up_to && is_boundary && *entry.channel == *CHAT && is_quiet
    })
}

/// What is in the queue is known only at the end.
fn but_for_queues(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    for event in &mut events {
        if let Body::QueueChanged { returned, queue } = &mut event.body {
            (*returned, *queue) = (Vec::new(), Vec::new());
        }
    }
    events
}

/// What a client holds, without inputs of calls that never were ready: AHP's state drops those when the turn ends, so a
/// snapshot cannot have them.
fn known(state: &MessageState) -> MessageState {
    fn strip(blocks: &mut [Block]) {
        for block in blocks {
            if let Some(tool) = &mut block.tool
                && tool.outcome.as_ref().is_some_and(|outcome| outcome.result == "The call was stopped.")
            {
                tool.input = None;
            }
            strip(&mut block.blocks);
        }
    }
    let mut state = state.clone();
    state.messages.iter_mut().chain(&mut state.current).for_each(|message| strip(&mut message.blocks));
    state
}
