//! After the score: the sale goes on slowly, with a few in line, so that a person can come with a browser, wait a little, and buy.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::time::sleep;

use super::{DemoFault, Stage, tell};
use crate::crowd::children::Part;
use crate::crowd::watch::look;
use crate::shop::ROOM;

/// Phones put on sale for the person at the browser.
const PHONES: u64 = 10;
/// The pace from then on: slow enough to see the line move.
const PACE: &str = "20/min";
/// How many stand in line.
const COMPANY: u64 = 12;
/// The number of the first of them, far from the crowd's.
const FIRST_OF_COMPANY: u64 = 10_000_000;

/// Sells slowly until it is stopped; returns only when something fails.
pub(super) async fn stay_open(stage: &mut Stage) -> DemoFault {
    match reopen(stage).await {
        Ok(company) => stage.parts.push(company),
        Err(fault) => return fault,
    }
    let public = stage.places.public;
    tell(&format!(
        "\nThe sale goes on: {PHONES} more phones, one visitor let in every three seconds, and about {COMPANY} in line before you.\n\
         \n  Open        http://{public}/sale   and wait your turn, here or in several tabs\
         \n  Operators   http://{}/v1/rooms/{ROOM}   and /metrics\
         \n  Logs        {}\n\
         \nCtrl-C stops everything and leaves nothing behind.",
        stage.places.ops,
        stage.folder.path().display()
    ));
    let selling = keep_selling(stage.ops.clone());
    tokio::select! {
        fault = selling => fault,
        fault = stage.gateway.ended() => fault.into(),
        fault = stage.shop.ended() => fault.into(),
    }
}

/// More phones, a slow pace, and a small line.
async fn reopen(stage: &Stage) -> Result<Part, DemoFault> {
    let room = look(&stage.ops, ROOM).await.map_err(DemoFault::Ops)?;
    let stock = room.stock.map_or(0, |stock| stock.stock) + PHONES;
    tune(&stage.ops, &json!({"stock": stock, "rate": PACE})).await?;
    let company = [
        "crowd".to_owned(),
        format!("--target={}", stage.places.public),
        "--visitors=0".to_owned(),
        format!("--company={COMPANY}"),
        format!("--first={FIRST_OF_COMPANY}"),
        format!("--connections={}", COMPANY * 4),
    ];
    let mut company = Part::start("the company in line", stage.folder.path().join("company.log"), company)?;
    if let Some(mut words) = company.listen() {
        // Its reports are not needed, but somebody must read them.
        tokio::spawn(async move { tokio::io::copy(&mut words, &mut tokio::io::sink()).await });
    }
    Ok(company)
}

/// Puts phones on sale again whenever the last is sold, after a while in which the page says so.
async fn keep_selling(ops: crate::shop::ask::Asker) -> DemoFault {
    loop {
        sleep(Duration::from_secs(1)).await;
        let Ok(room) = look(&ops, ROOM).await else { continue };
        let Some(stock) = room.stock else { continue };
        if stock.sold < stock.stock {
            continue;
        }
        tell("Sold out again. In 15 seconds there are more phones.");
        sleep(Duration::from_secs(15)).await;
        if let Err(fault) = tune(&ops, &json!({"stock": stock.stock + PHONES})).await {
            return fault;
        }
    }
}

async fn tune(ops: &crate::shop::ask::Asker, change: &serde_json::Value) -> Result<(), DemoFault> {
    let (status, body) = ops.patch(&format!("/v1/rooms/{ROOM}"), change).await.map_err(DemoFault::Ops)?;
    if status == StatusCode::OK {
        return Ok(());
    }
    Err(DemoFault::Ops(format!(
        "changing the room was answered {status}: {}",
        String::from_utf8_lossy(&body)
    )))
}
