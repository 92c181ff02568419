//! Whatever an agent says and whatever clients do, v2 shows what AHP shows.

use breakbulk_lifecycle::projection::Change;
use breakbulk_lifecycle::v2::{Model, Projector};

use proptest::prelude::*;

use crate::agent::{Deed, deeds, world};
use crate::grammar::Grammar;
use crate::oracle::{of_ahp, of_model};
use crate::world::{CHAT, SESSION, World, apply, config};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn after_every_entry_the_model_holds_what_the_official_reducers_hold(deeds in deeds()) {
        let world = begun(deeds);
        let mut projector = Projector::new(config());
        let mut model = Model::new("s1");
        for (entry, state) in world.log.iter().zip(&world.then) {
            for event in apply(&mut projector, entry) {
                prop_assert!(model.apply(&event));
            }
            let ahp = of_ahp(&state.chats, CHAT);
            prop_assert_eq!(of_model(model.state(), &ahp), ahp, "after {:?}", entry);
            let runs = state.chats.get(CHAT).is_some_and(|chat| chat.active_turn.is_some());
            prop_assert_eq!(model.state().running, runs);
        }
    }

    #[test]
    fn events_keep_the_rules(deeds in deeds()) {
        let mut world = begun(deeds);
        // However a session ends, everything in it ends before.
        world.put(SESSION, Change::Closed);
        let mut grammar = Grammar::default();
        world.events().iter().flatten().for_each(|event| grammar.check(event));
    }
}

/// A session in which a turn begins at once: most events make sense only there.
pub(crate) fn begun(deeds: Vec<Deed>) -> World {
    let first = Deed::Said(breakbulk_lifecycle::Event::TurnStarted { turn: "t".into() });
    world(&std::iter::once(first).chain(deeds).collect::<Vec<_>>())
}
