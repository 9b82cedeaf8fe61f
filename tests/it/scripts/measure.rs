//! `measure`: counts that are exact, whatever happens to the line.

use waitgate::store::scripts::{Knock, Presence, Tuning};

use crate::harness::{TERMS, World, joining, place, seed};

#[tokio::test]
async fn blocks_count_the_live_beyond_the_frontier() {
    let world = World::with(seed(0)).await;
    let names: Vec<String> = (0..3_000).map(|n| format!("t{n}")).collect();
    let all: Vec<_> = names.iter().map(|name| joining(name, 0, Knock::Join)).collect();
    let places: Vec<u64> = world.ask_join(&all).await.standings.into_iter().map(place).collect();
    let leavers = (0..3_000).step_by(7).map(|n| Presence::Leave(format!("t{n}"))).collect::<Vec<_>>();
    world.room.depart(&TERMS, &leavers).await.unwrap();
    let rate = Tuning {
        rate_milli: Some(1_500_000),
        ..Tuning::default()
    };
    world.room.tune("me", "1", &rate).await.unwrap();
    world.advance_ms(1_000);
    assert_eq!(world.tick().await, 1_500);
    let measured = world.room.measure().await.unwrap().unwrap();
    let live: Vec<u64> = (0..3_000).filter(|n| n % 7 != 0).map(|n| places[n]).skip(1_500).collect();
    assert_eq!(measured.frontier, places[(0..3_000).filter(|n| n % 7 != 0).nth(1_499).unwrap()]);
    let mut wanted = std::collections::BTreeMap::new();
    for place in &live {
        *wanted.entry(place / 1_024).or_insert(0) += 1;
    }
    assert_eq!(measured.blocks, wanted.into_iter().collect::<Vec<(u64, u64)>>());
    let first_block = live[0] / 1_024;
    assert_eq!(
        measured.first,
        live.into_iter().filter(|place| place / 1_024 == first_block).collect::<Vec<_>>()
    );
    assert_eq!(measured.last, places[2_999]);
}

#[tokio::test]
async fn an_empty_line_measures_nothing() {
    let world = World::with(seed(0)).await;
    let measured = world.room.measure().await.unwrap().unwrap();
    assert!(measured.blocks.is_empty() && measured.first.is_empty());
}

/// Whoever came back after being passed over is behind the frontier: however it goes, the counts of those beyond stay what they are.
#[tokio::test]
async fn who_is_behind_the_frontier_is_counted_in_no_block() {
    for ending in ["called", "left", "abandoned"] {
        let world = World::of_one_a_second().await;
        world.join(&["used", "a", "b", "c", "d"]).await;
        let counted = async || {
            world
                .room
                .measure()
                .await
                .unwrap()
                .unwrap()
                .blocks
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>()
        };
        assert_eq!(counted().await, 4);
        let depart = async |change| world.room.depart(&TERMS, &[change]).await.unwrap();
        depart(Presence::Away("a".into())).await;
        world.advance_ms(1_000);
        assert_eq!(world.tick().await, 1, "b");
        depart(Presence::Back("a".into(), 0)).await;
        assert_eq!((counted().await, world.room.show().await.unwrap().unwrap().waiting), (2, 3));
        match ending {
            "called" => {
                world.advance_ms(1_000);
                assert_eq!(world.tick().await, 1);
            }
            "left" => depart(Presence::Leave("a".into())).await,
            _ => {
                depart(Presence::Away("a".into())).await;
                world.advance_ms(TERMS.grace_ms);
                assert_eq!(world.room.sweep(&TERMS).await.unwrap().abandoned, 1);
            }
        }
        assert_eq!(
            (counted().await, world.room.show().await.unwrap().unwrap().waiting),
            (2, 2),
            "{ending}"
        );
    }
}
