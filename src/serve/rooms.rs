//! The rooms of a gateway: how one begins, is given other settings, and ends, while requests go on.
//!
//! A room, its line and its feed live as long as the room is configured; a hall is one view of them under one set of settings, and is made anew
//! for every set. So a reload drops no stream and forgets no place, and a request sees one set of settings from end to end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::StartFault;
use crate::admission;
use crate::clock::Clock;
use crate::config::{self, Config, OnStoreLoss};
use crate::limit::OpenDoor;
use crate::ops::OpsRoom;
use crate::peers::{Me, Peers};
use crate::queue::{Line, terms};
use crate::room::Room;
use crate::stop::Stop;
use crate::store::Store;
use crate::token::cookie::Names;
use crate::visitor::login::Reader;
use crate::waiting::hall::{Hall, House};
use crate::waiting::live::Feed;

/// Rooms that are gone and still told of: whoever waits there hears that it is closed.
const MAX_GONE: usize = 64;

/// Keeps the rooms running.
pub(super) struct Keeper {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) rounds: TaskTracker,
    pub(super) stop: Stop,
    /// Where the line's tasks run.
    pub(super) thread: Handle,
    /// This process, as other gateways are told.
    me: Arc<Me>,
    running: HashMap<String, Running>,
    gone: Vec<Arc<Hall>>,
}

/// A room that runs.
#[derive(Clone)]
struct Running {
    hall: Arc<Hall>,
    end: CancellationToken,
}

/// The rooms that some settings ask for, ready to take over.
pub(super) struct Plan(Vec<Running>);

impl Plan {
    pub(super) fn halls(&self) -> Vec<Arc<Hall>> {
        self.0.iter().map(|running| Arc::clone(&running.hall)).collect()
    }

    pub(super) fn ops_rooms(&self) -> Vec<OpsRoom> {
        let rooms = self.0.iter().map(|running| &running.hall);
        rooms
            .map(|hall| OpsRoom {
                id: hall.room.id.clone(),
                store: hall.room.store.clone(),
                terms: terms(&hall.settings),
                copies: hall
                    .settings
                    .claim
                    .as_ref()
                    .map_or((0, Duration::ZERO), |claim| (claim.replicas, claim.replicas_timeout)),
                peers: Arc::clone(&hall.peers),
            })
            .collect()
    }
}

impl Keeper {
    pub(super) fn new(store: Store, clock: Clock, stop: Stop, thread: Handle, me: Me) -> Self {
        Self {
            store,
            clock,
            rounds: TaskTracker::new(),
            stop,
            thread,
            me: Arc::new(me),
            running: HashMap::new(),
            gone: Vec::new(),
        }
    }

    /// Makes the halls of these settings. Nothing that runs is touched.
    pub(super) fn plan(&self, config: &Config, house: &House) -> Result<Plan, StartFault> {
        let reader = |room: &config::Room| {
            let login = room.login.as_ref().map(Reader::new).transpose();
            login.map_err(|fault| StartFault::Login(room.id.clone(), fault))
        };
        let logins = config.rooms.iter().map(reader).collect::<Result<Vec<_>, _>>()?;
        let rooms = config.rooms.iter().zip(logins);
        Ok(Plan(rooms.map(|(room, login)| self.hall(room, login, house)).collect()))
    }

    fn hall(&self, settings: &config::Room, login: Option<Reader>, house: &House) -> Running {
        let settings = Arc::new(settings.clone());
        let known = self.running.get(&settings.id);
        let end = known.map_or_else(|| self.stop.draining.child_token(), |known| known.end.clone());
        let (room, line, feed) = match known {
            Some(Running { hall, .. }) => (Arc::clone(&hall.room), Arc::clone(&hall.line), Arc::clone(&hall.feed)),
            None => self.begin(&settings, house, &end),
        };
        let peers = known.map_or_else(|| Arc::new(Peers::new(Arc::clone(&self.me))), |known| Arc::clone(&known.hall.peers));
        let same_rate = known.filter(|known| known.hall.settings.rate == settings.rate);
        let open_door = (settings.on_store_loss == OnStoreLoss::Open).then(|| {
            let kept = same_rate.and_then(|known| known.hall.open_door.clone());
            kept.unwrap_or_else(|| Arc::new(OpenDoor::new(settings.rate)))
        });
        let hall = Arc::new(Hall {
            names: Names::new(house.cookies, &settings.id),
            metrics: house.metrics.room(&settings.id),
            routes: format!("{}/{}", house.prefix, settings.id),
            first_pages: DashMap::new(),
            sold_out_pages: DashMap::new(),
            login,
            open_door,
            peers,
            settings,
            room,
            line,
            feed,
        });
        Running { hall, end }
    }

    fn begin(&self, settings: &Arc<config::Room>, house: &House, end: &CancellationToken) -> (Arc<Room>, Arc<Line>, Arc<Feed>) {
        let _there = self.thread.enter();
        let store = self.store.room(&settings.id);
        let room = Arc::new(Room::new(Arc::clone(settings), store, self.clock.clone()));
        let line = Line::start(Arc::clone(&room), Arc::clone(&house.metrics), end.clone(), &self.rounds);
        let feed = Feed::new(Arc::clone(&room), Arc::clone(&line));
        (room, line, feed)
    }

    /// Puts a plan in force: new rooms begin their rounds, known ones get their settings.
    pub(super) fn take_over(&mut self, plan: &Plan) {
        let _there = self.thread.enter();
        for running in &plan.0 {
            let (hall, end) = (&running.hall, &running.end);
            let id = hall.room.id.clone();
            hall.room.adopt(Arc::clone(&hall.settings));
            let before = self.running.insert(id.clone(), running.clone());
            if before.is_none() {
                let news = self.store.listen(&id);
                let rounds = admission::run(Arc::clone(hall), news, self.stop.draining.clone(), end.clone());
                self.rounds.spawn(rounds);
                self.gone.retain(|gone| gone.room.id != id);
            }
        }
    }

    /// Ends the rooms that are not in the plan: whoever waits there is told. To be called when no new request finds them any more.
    pub(super) fn end_all_but(&mut self, plan: &Plan) {
        let stays = |id: &str| plan.0.iter().any(|running| running.hall.room.id == id);
        self.running.retain(|id, running| {
            let stays = stays(id);
            if !stays {
                running.end.cancel();
            }
            stays
        });
    }

    /// The rooms that are gone once this plan is in force.
    pub(super) fn gone_after(&mut self, plan: &Plan) -> Vec<Arc<Hall>> {
        let stays = |id: &str| plan.0.iter().any(|running| running.hall.room.id == id);
        let leaving = self.running.values().filter(|running| !stays(&running.hall.room.id));
        self.gone.extend(leaving.map(|running| Arc::clone(&running.hall)));
        let too_many = self.gone.len().saturating_sub(MAX_GONE);
        self.gone.drain(..too_many);
        self.gone.iter().filter(|hall| !stays(&hall.room.id)).cloned().collect()
    }
}
