//! What can be typed after `waitgate room`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Look at rooms and change them, over the operators' listener of a running gateway.
#[derive(Args, Clone, Debug)]
pub struct RoomCommand {
    /// How the listener is reached.
    #[command(flatten)]
    pub reach: Reach,
    /// What is asked of it.
    #[command(subcommand)]
    pub what: What,
}

/// How the operators' listener is reached.
#[derive(Args, Clone, Debug)]
pub struct Reach {
    /// Address of the operators' listener
    #[arg(
        long,
        global = true,
        env = "WAITGATE_OPS_URL",
        default_value = "http://127.0.0.1:9090",
        value_name = "URL"
    )]
    pub url: String,
    /// File that holds the token of the operators' listener
    #[arg(long, global = true, env = "WAITGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Name under which a change is written down [default: the login's]
    #[arg(long, global = true, env = "WAITGATE_OPERATOR", value_name = "NAME")]
    pub operator: Option<String>,
    /// The login's name
    #[arg(long, global = true, env = "USER", hide = true)]
    pub login: Option<String>,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// One thing to ask.
#[derive(Subcommand, Clone, Debug)]
pub enum What {
    /// All rooms, one line each
    List,
    /// One room
    Show {
        /// The room
        id: String,
    },
    /// Set how many are let in: 200, 200/s, 100/min or 50/h
    Admit {
        /// The room
        id: String,
        /// The rate
        rate: String,
    },
    /// Set how many may be inside at once; 0 is no cap
    Cap {
        /// The room
        id: String,
        /// Called and admitted visitors at most
        cap: u64,
    },
    /// Let nobody in until `resume`
    Pause {
        /// The room
        id: String,
    },
    /// Let people in again
    Resume {
        /// The room
        id: String,
    },
    /// Set how many units the whole sale has, sold and held ones included
    Stock {
        /// The room
        id: String,
        /// All units of the sale
        stock: u64,
    },
    /// Tell those who wait something; "" takes it away
    Message {
        /// The room
        id: String,
        /// The text
        text: String,
    },
    /// Set when the room opens
    Opens {
        /// The room
        id: String,
        /// A time such as 2026-12-01T12:00:00Z, or `now`
        #[arg(value_name = "TIME")]
        at: String,
    },
    /// Set when the room closes
    Closes {
        /// The room
        id: String,
        /// A time such as 2026-12-01T18:00:00Z, or `never`
        #[arg(value_name = "TIME")]
        at: String,
    },
    /// One reservation
    Reservation {
        /// The room
        id: String,
        /// The reservation
        reservation: String,
    },
    /// A reservation is paid: its units are sold
    Confirm {
        /// The room
        id: String,
        /// The reservation
        reservation: String,
    },
    /// Give the units of a reservation back
    Release {
        /// The room
        id: String,
        /// The reservation
        reservation: String,
    },
    /// Exit code 0 if the gateway answers: for health checks
    Health {
        /// Only if it is ready to serve, too
        #[arg(long)]
        ready: bool,
    },
}
