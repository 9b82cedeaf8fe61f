//! What can be typed: `waitgate serve`, `check`, `doctor`, `demo`, `rehearse`, `room`, `backends`, `reload` and `keys`; and the two hidden commands with which the demo starts its crowd and its shop.
//!
//! Reading the command line is one step ([`Cli::prepare`]), doing what it says another ([`Work::run`]), because settings say how many threads
//! the runtime between them gets. Exit codes: 0 it went well, 1 something broke, 2 the command line is wrong, 78 the settings are wrong.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tokio::sync::Notify;

use crate::clock::{Clock, millis};
use crate::config::{self, AccessTarget, Config, Log, LogFormat};
use crate::crowd::{self, CrowdOptions};
use crate::demo::{self, DemoOptions};
use crate::doctor;
use crate::ops::client::{self, Reach, RoomCommand};
use crate::rehearse::{self, RehearseOptions};
use crate::serve::{self, Outside};
use crate::shop::{self, ShopOptions};
use crate::stop::Stop;
use crate::telemetry::{self, LogFilter};
use crate::token::keys;

/// Something broke.
const BROKE: u8 = 1;
/// The command line is wrong: clap's own code.
const USAGE: u8 = 2;
/// The settings are wrong: `EX_CONFIG` of sysexits.
const BAD_SETTINGS: u8 = 78;

/// A virtual waiting room in front of a sale.
#[derive(Parser, Debug)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    /// What is logged, like "info,waitgate::store=debug"; wins over the settings' log.filter
    #[arg(long, global = true, env = "RUST_LOG", value_name = "FILTER", hide_env_values = true)]
    log: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the gateway
    Serve(ConfigFile),
    /// Say what is wrong with a configuration, or print the settings in force
    Check(ConfigFile),
    /// Look at a configuration, its store and this machine for what bites during a sale
    Doctor {
        #[command(flatten)]
        file: ConfigFile,
        /// How many visitors are expected
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        visitors: u64,
    },
    /// Show it all on this machine: a shop, a sale and a crowd
    Demo(DemoOptions),
    /// Send a crowd to a gateway of yours, and see what it keeps of what it promises
    Rehearse(RehearseOptions),
    /// Look at rooms and change them while people wait
    Room(RoomCommand),
    /// Look at the backends: who is up, and how busy
    Backends(Reach),
    /// Let a running gateway read its configuration again; all of it is put in force, or nothing
    Reload(Reach),
    /// Change the keys that sign tickets and admissions, without a lost place
    Keys(KeysCommand),
    /// The demo's crowd
    #[command(hide = true)]
    Crowd(CrowdOptions),
    /// The demo's shop
    #[command(hide = true)]
    Shop(ShopOptions),
}

#[derive(Args, Debug)]
struct ConfigFile {
    /// The configuration; config/waitgate.toml shows every key
    #[arg(long, short, env = "WAITGATE_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

#[derive(Args, Debug)]
struct KeysCommand {
    #[command(subcommand)]
    verb: KeysVerb,
}

#[derive(Subcommand, Debug)]
enum KeysVerb {
    /// Add a key that signs from a while on; gateways read the file again by themselves, and the old key goes on verifying
    Rotate {
        #[command(flatten)]
        file: ConfigFile,
        /// Seconds until the new key signs: long enough for the file to reach every gateway, and the JWKS every backend
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        signs_in: u64,
    },
}

/// What is left to do once the command line has been read; it needs a runtime.
#[derive(Debug)]
pub struct Work(Kind);

#[derive(Debug)]
enum Kind {
    Serve(Box<Config>, Outside),
    Doctor(Box<Config>, u64),
    Demo(DemoOptions),
    Rehearse(RehearseOptions),
    Room(RoomCommand),
    Backends(Reach),
    Reload(Reach),
    Crowd(CrowdOptions),
    Shop(ShopOptions),
}

impl Cli {
    /// Reads settings, starts logging, and does what needs no runtime.
    ///
    /// # Errors
    /// Not one, but the end: the exit code of a command that is done, or that cannot begin. What went wrong has been said.
    pub fn prepare(self) -> Result<Work, ExitCode> {
        let log = self.log.as_deref();
        let kind = match self.command {
            Command::Check(file) => return Err(check(&file.config)),
            Command::Serve(file) => {
                let config = load(&file.config)?;
                let filter = start_log(&config.log, log)?;
                if let Some(sentence) = config.idle() {
                    return Err(complain(BAD_SETTINGS, &format!("{}: {sentence}", file.config.display())));
                }
                let outside = Outside {
                    log: Some(filter),
                    ..Outside::default()
                };
                Kind::Serve(Box::new(config), outside)
            }
            Command::Doctor { file, visitors } => {
                let config = load(&file.config)?;
                start_log(&quiet(), log)?;
                Kind::Doctor(Box::new(config), visitors)
            }
            Command::Demo(options) => {
                start_log(&quiet(), log)?;
                Kind::Demo(options)
            }
            Command::Rehearse(options) => {
                start_log(&quiet(), log)?;
                Kind::Rehearse(options)
            }
            Command::Crowd(options) => {
                start_log(&quiet(), log)?;
                Kind::Crowd(options)
            }
            Command::Shop(options) => {
                start_log(&quiet(), log)?;
                Kind::Shop(options)
            }
            Command::Room(command) => Kind::Room(command),
            Command::Backends(reach) => Kind::Backends(reach),
            Command::Reload(reach) => Kind::Reload(reach),
            Command::Keys(command) => return Err(rotate(&command.verb)),
        };
        Ok(Work(kind))
    }
}

impl Work {
    /// Worker threads that the settings ask for; none: one per core.
    #[must_use]
    pub fn workers(&self) -> Option<usize> {
        match &self.0 {
            Kind::Serve(..) => Some(1),
            Kind::Room(_) | Kind::Backends(_) | Kind::Reload(_) | Kind::Doctor(..) => Some(1),
            Kind::Rehearse(_) | Kind::Crowd(_) => Some(1),
            Kind::Demo(_) | Kind::Shop(_) => None,
        }
    }

    /// Whether a signal should begin a clean end, rather than end the process.
    #[must_use]
    pub fn ends_by_signal(&self) -> bool {
        matches!(self.0, Kind::Serve(..))
    }

    /// Told when `SIGHUP` comes; none: it means nothing to this command.
    #[must_use]
    pub fn hang_ups(&self) -> Option<Arc<Notify>> {
        match &self.0 {
            Kind::Serve(_, outside) => Some(Arc::clone(&outside.hang_ups)),
            _ => None,
        }
    }

    /// Does it. `stop` is heeded where [`Work::ends_by_signal`].
    pub async fn run(self, stop: Stop) -> ExitCode {
        match self.0 {
            Kind::Serve(config, outside) => match serve::run(*config, stop, outside).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(fault) => complain(BROKE, &fault.to_string()),
            },
            Kind::Doctor(config, visitors) => doctor::run(&config, visitors).await,
            Kind::Demo(options) => demo::run(options).await,
            Kind::Rehearse(options) => rehearse::run(options).await,
            Kind::Room(command) => end(client::run(command).await),
            Kind::Backends(reach) => end(client::backends(&reach).await),
            Kind::Reload(reach) => end(client::reload(&reach).await),
            Kind::Crowd(options) => crowd::run(options).await,
            Kind::Shop(options) => shop::run(options).await,
        }
    }
}

fn end(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => complain(BROKE, &sentence),
    }
}

fn load(file: &Path) -> Result<Config, ExitCode> {
    config::load(file).map_err(|mistakes| {
        let count = mistakes.0.len();
        let word = if count == 1 { "mistake" } else { "mistakes" };
        complain(BAD_SETTINGS, &format!("{count} {word} in the configuration\n{mistakes}"))
    })
}

fn check(file: &Path) -> ExitCode {
    let config = match load(file) {
        Ok(config) => config,
        Err(code) => return code,
    };
    if let Some(sentence) = config.idle() {
        complain(
            0,
            &format!("this is a good file, but `waitgate serve` would not start with it: {sentence}"),
        );
    }
    // A closed pipe (`waitgate check … | head`) is nobody's mistake.
    let _ = std::io::stdout().write_all(config::show(&config).as_bytes());
    ExitCode::SUCCESS
}

fn rotate(verb: &KeysVerb) -> ExitCode {
    let KeysVerb::Rotate { file, signs_in } = verb;
    let config = match load(&file.config) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let now_ms = Clock::system().now_ms();
    let from_ms = now_ms.saturating_add(signs_in.saturating_mul(1000));
    let admissions = config.rooms.iter().map(|room| room.admission_ttl);
    let lasts_ms = millis(admissions.fold(config.tokens.ticket_ttl, Duration::max));
    match keys::rotate(&config.tokens.key_file, now_ms, from_ms, lasts_ms) {
        Ok(kid) => {
            let words =
                format!("key {kid} verifies within seconds and signs in {signs_in} s; copy the file to gateways that do not share it\n");
            let _ = std::io::stdout().write_all(words.as_bytes());
            ExitCode::SUCCESS
        }
        Err(fault) => complain(BROKE, &fault.to_string()),
    }
}

/// How the demo's processes log: what the person should know, and no more.
fn quiet() -> Log {
    Log {
        filter: "warn".to_owned(),
        format: LogFormat::Human,
        access: AccessTarget::Off,
        query: false,
    }
}

fn start_log(settings: &Log, filter: Option<&str>) -> Result<LogFilter, ExitCode> {
    telemetry::start_log(settings, filter.filter(|filter| !filter.is_empty())).map_err(|sentence| complain(USAGE, &sentence))
}

/// Says on standard error what is wrong.
fn complain(code: u8, sentence: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "waitgate: {sentence}"); // nobody is left to be told that nobody can be told
    ExitCode::from(code)
}
