//! Whatever an agent says, in whatever order, what comes out is well formed.

mod generated_events;

use breakbulk_lifecycle::{BlockType, Checker, Event, Id, Outcome, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

use self::generated_events::event;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_events_in_any_order_come_out_well_formed(said in vec(event(), 0..120)) {
        let formed = written(&said);
        let mut checker = Checker::new();
        for (at, event) in formed.iter().enumerate() {
            checker.check(event).map_err(|rule| TestCaseError::fail(format!("{rule} at {at} of {formed:#?}")))?;
        }
        prop_assert!(checker.is_done());
    }

    #[test]
    fn well_formed_events_pass_unchanged(said in vec(event(), 0..80)) {
        let formed = written(&said);
        prop_assert_eq!(&written(&formed), &formed);
    }

    #[test]
    fn no_word_inside_a_turn_is_lost_or_told_twice(said in vec(event(), 0..80)) {
        let formed = written(&said);
        for kind in [BlockType::Text, BlockType::Thinking, BlockType::Redacted] {
            prop_assert_eq!(words(&formed, kind), words(&said, kind));
        }
    }

    #[test]
    fn every_prefix_can_be_ended(said in vec(event(), 0..40), cut in 0_usize..40) {
        let formed = written(said.get(..cut).unwrap_or(&said));
        let mut checker = Checker::new();
        prop_assert!(formed.iter().all(|event| checker.check(event).is_ok()));
        prop_assert!(checker.is_done());
    }
}

/// What a writer makes of these, the end included.
fn written(said: &[Event]) -> Vec<Event> {
    let mut writer = Writer::new();
    for event in said {
        writer.write(event.clone());
    }
    writer.end(Outcome::Cancelled);
    std::iter::from_fn(|| writer.poll()).map(|formed| formed.into_event()).collect()
}

/// All text of a kind that was said inside turns.
fn words(events: &[Event], wanted: BlockType) -> String {
    let mut text = String::new();
    let mut turn: Option<&Id> = None;
    for event in events {
        match event {
            Event::TurnStarted { turn: begun } => turn = Some(begun),
            Event::TurnEnded { turn: ended, .. } if turn == Some(ended) => turn = None,
            Event::BlockDelta { kind, text: more, .. } if *kind == wanted && turn.is_some() => text.push_str(more),
            _ => {}
        }
    }
    text
}
