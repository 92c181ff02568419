//! Watching.

use std::collections::BTreeMap;
use std::time::Duration;

use ahp_types::actions::StateAction;
use ahp_types::commands::CreateResourceWatchParams;
use ahp_types::state::ResourceChangeType::{Added, Deleted, Updated};
use ahp_types::state::{ResourceChange, ResourceChangeType};
use breakbulk_host::test_support::files::{FileError, Watch};
use serde_json::{Value, json};

use crate::common::{Place, root};

/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

fn params(place: &Place, path: &str, recursive: bool) -> CreateResourceWatchParams {
    CreateResourceWatchParams {
        channel: root(),
        meta: None,
        uri: place.uri(path),
        recursive: Some(recursive),
        excludes: None,
        includes: None,
    }
}

async fn watch(place: &Place, path: &str, recursive: bool) -> Watch {
    place.files.watch(params(place, path, recursive)).await.unwrap()
}

fn changes(action: StateAction) -> Vec<ResourceChange> {
    let StateAction::ResourceWatchChanged(action) = action else { panic!("{action:?}") };
    let items: Vec<ResourceChange> = serde_json::from_value(action.changes["items"].clone()).unwrap();
    assert!(!items.is_empty());
    items
}

/// Waits until all of these changes were reported, whatever else is.
async fn hear(watch: &mut Watch, want: &[(String, ResourceChangeType)]) -> BTreeMap<String, ResourceChangeType> {
    let mut heard = BTreeMap::new();
    let all = async {
        while !want.iter().all(|(uri, kind)| heard.get(uri) == Some(kind)) {
            for change in changes(watch.next().await.unwrap()) {
                heard.insert(change.uri, change.r#type);
            }
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, all).await.is_ok();
    assert!(in_time, "wanted {want:?}, heard {heard:?}");
    heard
}

#[tokio::test]
async fn made_changed_renamed_and_deleted_files_are_reported() {
    let place = Place::new();
    let mut watch = watch(&place, "one", true).await;
    assert!(watch.channel().starts_with("ahp-resource-watch:/"));
    assert_eq!(watch.result().channel, watch.channel());
    assert_eq!((watch.state().root.as_str(), watch.state().recursive), (place.uri("one").as_str(), true));
    place.put("one/a", "1");
    hear(&mut watch, &[(place.uri("one/a"), Added)]).await;
    place.put("one/a", "2");
    hear(&mut watch, &[(place.uri("one/a"), Updated)]).await;
    std::fs::rename(place.path("one/a"), place.path("one/b")).unwrap();
    hear(&mut watch, &[(place.uri("one/a"), Deleted), (place.uri("one/b"), Added)]).await;
    std::fs::remove_file(place.path("one/b")).unwrap();
    hear(&mut watch, &[(place.uri("one/b"), Deleted)]).await;
}

#[tokio::test]
async fn a_file_that_is_replaced_as_a_whole_is_updated_and_nothing_else() {
    let place = Place::new();
    place.put("one/a", "old");
    let mut watch = watch(&place, "one", true).await;
    place.write("one/a", "new").await.unwrap();
    let heard = hear(&mut watch, &[(place.uri("one/a"), Updated)]).await;
    assert_eq!(heard.len(), 1, "{heard:?}");
}

#[tokio::test]
async fn files_in_new_directories_are_reported_however_fast_they_come() {
    let place = Place::new();
    let mut watch = watch(&place, "one", true).await;
    for n in 0..20 {
        std::fs::create_dir_all(place.path(&format!("one/d{n}/deep"))).unwrap();
        place.put(&format!("one/d{n}/deep/file"), "");
    }
    let want: Vec<_> = (0..20).map(|n| (place.uri(&format!("one/d{n}/deep/file")), Added)).collect();
    hear(&mut watch, &want).await;
    place.put("one/d7/deep/later", "");
    hear(&mut watch, &[(place.uri("one/d7/deep/later"), Added)]).await;
}

#[tokio::test]
async fn a_directory_that_moves_is_watched_under_its_new_name() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("one/b/deep")).unwrap();
    place.put("one/b/deep/x", "");
    let mut watch = watch(&place, "one", true).await;
    for (from, to) in [("one/b", "one/a"), ("one/a", "one/c")] {
        std::fs::rename(place.path(from), place.path(to)).unwrap();
        let (old, new) = (place.uri(&format!("{from}/deep/x")), place.uri(&format!("{to}/deep/x")));
        hear(&mut watch, &[(old, Deleted), (new.clone(), Added)]).await;
        place.put(&format!("{to}/deep/x"), to);
        hear(&mut watch, &[(new, Updated)]).await;
    }
}

#[tokio::test]
async fn without_recursive_only_direct_children_are_reported() {
    let place = Place::new();
    std::fs::create_dir(place.path("one/dir")).unwrap();
    let mut watch = watch(&place, "one", false).await;
    place.put("one/dir/deep", "");
    place.put("one/near", "");
    std::fs::create_dir_all(place.path("one/new/deep")).unwrap();
    let heard = hear(&mut watch, &[(place.uri("one/near"), Added), (place.uri("one/new"), Added)]).await;
    assert_eq!(heard.len(), 2, "{heard:?}");
}

#[tokio::test]
async fn a_single_file_is_watched_through_replacement_and_return() {
    let place = Place::new();
    place.put("one/a", "1");
    let mut watch = watch(&place, "one/a", false).await;
    place.put("one/sibling", "");
    place.write("one/a", "2").await.unwrap();
    let heard = hear(&mut watch, &[(place.uri("one/a"), Updated)]).await;
    assert_eq!(heard.len(), 1, "{heard:?}");
    std::fs::remove_file(place.path("one/a")).unwrap();
    hear(&mut watch, &[(place.uri("one/a"), Deleted)]).await;
    place.put("one/a", "3");
    hear(&mut watch, &[(place.uri("one/a"), Added)]).await;
}

#[tokio::test]
async fn a_watched_directory_may_go_and_come_back() {
    let place = Place::new();
    std::fs::create_dir(place.path("one/dir")).unwrap();
    place.put("one/dir/a", "");
    let mut watch = watch(&place, "one/dir", true).await;
    std::fs::remove_dir_all(place.path("one/dir")).unwrap();
    hear(&mut watch, &[(place.uri("one/dir"), Deleted), (place.uri("one/dir/a"), Deleted)]).await;
    std::fs::create_dir(place.path("one/dir")).unwrap();
    hear(&mut watch, &[(place.uri("one/dir"), Added)]).await;
    place.put("one/dir/b", "");
    hear(&mut watch, &[(place.uri("one/dir/b"), Added)]).await;
}

#[tokio::test]
async fn includes_and_excludes_choose_what_is_reported() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("one/src/skip")).unwrap();
    let mut params = params(&place, "one", true);
    params.includes = Some(json!({ "items": ["src/**/*.rs", "Cargo.toml"] }));
    params.excludes = Some(json!({ "items": ["**/skip"] }));
    let mut watch = place.files.watch(params).await.unwrap();
    assert_eq!(watch.state().excludes, Some(json!({ "items": ["**/skip"] })));
    for path in ["one/a.rs", "one/src/a.txt", "one/src/skip/a.rs", "one/src/a.rs", "one/Cargo.toml"] {
        place.put(path, "");
    }
    let heard = hear(&mut watch, &[(place.uri("one/src/a.rs"), Added), (place.uri("one/Cargo.toml"), Added)]).await;
    assert_eq!(heard.len(), 2, "{heard:?}");
    std::fs::remove_dir_all(place.path("one/src")).unwrap();
    let heard = hear(&mut watch, &[(place.uri("one/src/a.rs"), Deleted)]).await;
    assert_eq!(heard.len(), 1, "{heard:?}");
}

#[tokio::test]
async fn changes_are_reported_under_the_uri_that_was_asked_for() {
    let place = Place::new();
    place.link("../two", "one/link");
    let mut watch = watch(&place, "one/link", true).await;
    place.put("two/a b", "");
    hear(&mut watch, &[(place.uri("one/link/a b"), Added)]).await;
}

#[tokio::test]
async fn what_is_behind_a_link_is_not_watched() {
    let place = Place::new();
    place.link("../outside", "one/out");
    place.link("../two", "one/in");
    let mut watch = watch(&place, "one", true).await;
    place.put("outside/noise", "");
    place.put("two/noise", "");
    place.put("one/a", "");
    let heard = hear(&mut watch, &[(place.uri("one/a"), Added)]).await;
    assert_eq!(heard.len(), 1, "{heard:?}");
}

#[tokio::test]
async fn many_changes_come_in_bounded_actions_and_none_is_lost() {
    let place = Place::with(|config| config.max_watch_changes = 100);
    let mut watch = watch(&place, "one", true).await;
    for n in 0..12_000 {
        place.put(&format!("one/{n}"), "");
    }
    let mut heard = std::collections::HashSet::new();
    let all = async {
        while heard.len() < 12_000 {
            let items = changes(watch.next().await.unwrap());
            assert!(items.len() <= 100);
            heard.extend(items.into_iter().map(|change| change.uri));
        }
    };
    tokio::time::timeout(PATIENCE * 3, all).await.unwrap();
}

#[tokio::test]
async fn a_question_that_was_given_up_loses_no_change() {
    let place = Place::new();
    let mut watch = watch(&place, "one", true).await;
    let mut heard = std::collections::BTreeSet::new();
    for n in 0..30 {
        place.put(&format!("one/{n}"), "");
        if let Ok(action) = tokio::time::timeout(Duration::from_millis(n * 7), watch.next()).await {
            heard.extend(changes(action.unwrap()).into_iter().map(|change| change.uri));
        }
    }
    let rest: Vec<_> = (0..30)
        .map(|n| place.uri(&format!("one/{n}")))
        .filter(|uri| !heard.contains(uri))
        .map(|uri| (uri, Added))
        .collect();
    hear(&mut watch, &rest).await;
}

#[tokio::test]
async fn a_watch_of_what_is_missing_outside_or_too_much_is_refused() {
    let place = Place::with(|config| {
        config.max_watch_entries = 3;
        config.max_watches = 1;
    });
    assert_eq!(place.files.watch(params(&place, "one/x", true)).await.unwrap_err(), FileError::NotFound);
    assert_eq!(place.files.watch(params(&place, "outside", true)).await.unwrap_err(), FileError::Outside);
    let bad = CreateResourceWatchParams { includes: Some(Value::from("x")), ..params(&place, "one", true) };
    assert_eq!(place.files.watch(bad).await.unwrap_err(), FileError::BadPattern);
    let held = watch(&place, "one", true).await;
    assert_eq!(
        place.files.watch(params(&place, "two", true)).await.unwrap_err(),
        FileError::TooManyWatches { limit: 1 }
    );
    drop(held);
    for n in 0..3 {
        place.put(&format!("one/{n}"), "");
    }
    assert_eq!(place.files.watch(params(&place, "one", true)).await.unwrap_err(), FileError::TooMany { limit: 3 });
    watch(&place, "two", true).await;
}

#[tokio::test]
async fn a_watch_that_grew_too_large_says_look_for_yourself() {
    let place = Place::with(|config| config.max_watch_entries = 3);
    let mut watch = watch(&place, "one", true).await;
    for n in 0..5 {
        place.put(&format!("one/{n}"), "");
    }
    hear(&mut watch, &[(place.uri("one"), Updated), (place.uri("one/0"), Added)]).await;
}
