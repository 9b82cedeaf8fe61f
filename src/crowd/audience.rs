//! The crowd's processes, as they report.

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::mpsc;

use super::children::{Part, PartFault};
use super::report::{Counts, Report, Samples};

/// What all of them have said.
pub(crate) struct Audience {
    pub(crate) reports: mpsc::Receiver<(usize, Option<Report>)>,
    latest: Vec<Counts>,
    done: Vec<bool>,
    pub(crate) samples: Samples,
}

impl Audience {
    /// Listens to these.
    pub(crate) fn listen(parts: &mut [Part]) -> Self {
        let (sender, reports) = mpsc::channel(64);
        let processes = parts.len();
        for (process, part) in parts.iter_mut().enumerate() {
            if let Some(words) = part.listen() {
                tokio::spawn(read_reports(process, words, sender.clone()));
            }
        }
        Self {
            reports,
            latest: vec![Counts::default(); processes],
            done: vec![false; processes],
            samples: Samples::default(),
        }
    }

    /// All have said their last word.
    pub(crate) fn is_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }

    /// The counts of all.
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.latest.iter().for_each(|counts| sum.add(counts));
        sum
    }

    /// Takes what a process said; its silence before the end is a fault.
    pub(crate) async fn take(&mut self, heard: Option<(usize, Option<Report>)>, parts: &mut [Part]) -> Result<(), PartFault> {
        match heard {
            Some((process, Some(Report::Now { counts }))) => self.latest[process] = counts,
            Some((process, Some(Report::Done { counts, samples }))) => {
                self.latest[process] = counts;
                self.samples.add(*samples);
                self.done[process] = true;
            }
            Some((process, None)) if !self.done[process] => return Err(parts[process].ended().await),
            Some((_, None)) => {}
            None => return Err(PartFault::Silent),
        }
        Ok(())
    }
}

/// Reads a process's reports to the end; then `None`.
async fn read_reports(process: usize, words: ChildStdout, sender: mpsc::Sender<(usize, Option<Report>)>) {
    let mut lines = BufReader::new(words).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(report) = serde_json::from_str(&line) else { continue };
        if sender.send((process, Some(report))).await.is_err() {
            return;
        }
    }
    let _ = sender.send((process, None)).await;
}
