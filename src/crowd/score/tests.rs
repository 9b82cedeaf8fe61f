//! The score: what passes, what does not, and what is said of it.

use super::*;
use crate::crowd::report::Promise;
use crate::crowd::watch::Calls;

fn good() -> Score {
    let mut calls = Calls::default();
    for tick in 0..=50 {
        calls.note(1_000_000 + tick * 100, tick * 20, true);
    }
    Score {
        visitors: 20_000,
        stock: Some(100),
        rate: Some(Rate::from_milli(200_000)),
        all_sold: true,
        paid: true,
        watched: true,
        took: Duration::from_secs(30),
        counts: Counts {
            arrived: 20_000,
            willing: 15_000,
            won: 100,
            no_at_arrival: 400,
            no_while_waiting: 18_000,
            requests: 50_000,
            ..Counts::default()
        },
        samples: Samples {
            no_at_arrival_us: (1..=400).collect(),
            waits_ms: vec![1_000, 2_000, 3_000],
            promises: vec![Promise {
                low_s: 1,
                high_s: 4,
                actual_ms: 2_000,
                interrupted: false,
            }],
            told_no_at_ms: vec![1_000_020, 1_000_040],
            ..Samples::default()
        },
        looks: Looks {
            looks: 300,
            sold: 100,
            sold_out_at_ms: Some(1_000_000),
            calls,
            ..Looks::default()
        },
        shop: Some(ShopCounts {
            requests: 1_000,
            paid: 100,
            ..ShopCounts::default()
        }),
        usage: Some(Usage {
            cpu: Duration::from_secs(5),
            peak_bytes: 300 << 20,
        }),
        store_usage: None,
        cut_short: false,
    }
}

fn shop(score: &mut Score) -> &mut ShopCounts {
    score.shop.as_mut().unwrap()
}

#[test]
fn a_good_run_breaks_nothing() {
    assert_eq!(good().verdict(), Vec::<String>::new());
    let shown = good().to_string();
    for part in [
        "100 of 100, 0 too many",
        "always, in 300 looks",
        "400, p50 200 µs, p99 396 µs",
        "20 ms (p50) and 40 ms (p99)",
        "p50 2.0 s, p90 3.0 s, p99 3.0 s",
        "kept for 100 % of 1, and for 0 % of 0",
        "5.0 s of processor, 100 µs a request",
        "Every promise was kept.",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

#[test]
fn fewer_buyers_than_phones_is_no_fault() {
    let mut score = good();
    (score.counts.willing, score.counts.won, score.looks.sold, shop(&mut score).paid) = (60, 60, 60, 60);
    assert_eq!(score.verdict(), Vec::<String>::new());
}

#[test]
fn each_broken_promise_is_named() {
    type Break = fn(&mut Score);
    let cases: [(&str, Break); 14] = [
        ("98 of 100 phones went to somebody", |score| {
            (score.counts.won, score.looks.sold, shop(score).paid) = (98, 98, 98);
        }),
        ("more phones were sold than there are", |score| {
            (score.counts.won, score.looks.sold, shop(score).paid) = (101, 101, 101);
        }),
        ("the books differ", |score| score.looks.sold = 99),
        ("the shop was paid 101 times", |score| shop(score).paid = 101),
        ("free + held + sold was not the stock in 1", |score| score.looks.uneven = 1),
        ("one buyer got two reservations", |score| score.counts.twice = 1),
        ("1 times a visitor was shown a worse position", |score| score.counts.worse = 1),
        ("the rate was exceeded", |score| {
            let last = score.looks.calls.called();
            score.looks.calls.note(1_005_100, last + 403, true);
        }),
        ("1 requests reached the shop without", |score| shop(score).unadmitted = 1),
        ("an admission it could not verify", |score| shop(score).unverified = 1),
        ("claims reached the shop without a reservation", |score| {
            shop(score).claims_without_reservation = 1;
        }),
        ("neither a phone nor a \"no\"", |score| score.counts.stranded = 1),
        ("it was not over after 30 s", |score| score.cut_short = true),
        ("never answered", |score| score.looks.looks = 0),
    ];
    for (words, damage) in cases {
        let mut score = good();
        damage(&mut score);
        let broken = score.verdict();
        assert_eq!(broken.len(), 1, "{words}: {broken:?}");
        assert!(broken[0].contains(words), "{words}: {broken:?}");
        assert!(score.to_string().contains("Broken:"));
    }
}

#[test]
fn percentiles_are_by_nearest_rank() {
    assert_eq!(percentile(&[], 50), None);
    assert_eq!(percentile(&[7], 1), Some(7));
    let hundred: Vec<u64> = (1..=100).rev().collect();
    assert_eq!(
        (percentile(&hundred, 50), percentile(&hundred, 99), percentile(&hundred, 100)),
        (Some(50), Some(99), Some(100))
    );
    assert_eq!(percentile(&[1, 2, 3], 50), Some(2));
}

#[test]
fn numbers_are_grouped() {
    let shown = [0, 999, 1_000, 12_345, 1_234_567].map(grouped);
    assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,234,567"]);
}

#[test]
fn of_what_nobody_looked_at_nothing_is_said() {
    let mut score = good();
    (score.stock, score.rate, score.shop, score.watched, score.all_sold) = (None, None, None, false, false);
    score.looks = Looks::default();
    (score.counts.unfinished, score.counts.won) = (40, 0);
    assert_eq!(score.verdict(), Vec::<String>::new());
    let shown = score.to_string();
    for part in [
        "40 still in line or in the shop when it ended",
        "20,000 visitors, 30.0 s",
        "positions that got worse",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    for part in ["phones sold", "free + held", "let in ", "reached the shop"] {
        assert!(!shown.contains(part), "{part} is in {shown}");
    }
}
