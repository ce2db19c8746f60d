//! The rounds: state, primer, run; for each contender, in a new random order every time.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::roster::{self, BUFFERED, Contender, How, Sample, Subject};
use super::stats::{Random, median};
use crate::{cache, fio, repo};

/// What the page cache holds before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Cold,
    Warm,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        })
    }
}

/// One comparison.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) title: String,
    pub(crate) state: State,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
    pub(crate) primer_bytes: u64,
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) title: String,
    pub(crate) state: State,
    pub(crate) bytes: u64,
    pub(crate) seed: u64,
    pub(crate) primer_bytes: u64,
    pub(crate) rows: Vec<Row>,
}

/// One contender's samples, one per round; none where it failed.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is_fio: bool,
    pub(crate) samples: Vec<Option<Sample>>,
    /// Why it took no further part.
    pub(crate) error: Option<String>,
}

impl Row {
    /// A median over the samples that there are.
    pub(crate) fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.values(of))
    }

    pub(crate) fn values(&self, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().flatten().map(of).collect()
    }
}

impl Results {
    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.name == name && row.samples.iter().any(Option::is_some))
    }

    /// The other side: fio at its best here, or the plain read.
    pub(crate) fn baseline(&self) -> Option<&Row> {
        let fio = self
            .rows
            .iter()
            .filter(|row| row.is_fio && row.error.is_none());
        fio.max_by(|a, b| a.median(Sample::rate).total_cmp(&b.median(Sample::rate)))
            .or_else(|| self.row(BUFFERED))
    }

    /// Both contenders' values in the rounds where both ran.
    pub(crate) fn pairs(
        over: &Row,
        under: &Row,
        of: impl Fn(&Sample) -> f64 + Copy,
    ) -> Vec<(f64, f64)> {
        let both = over.samples.iter().zip(&under.samples);
        both.filter_map(|(a, b)| Some((of(a.as_ref()?), of(b.as_ref()?))))
            .collect()
    }
}

pub(crate) fn run(plan: &Plan, subject: &Subject) -> Result<Results> {
    let mut rows: Vec<Row> = plan
        .contenders
        .iter()
        .map(|contender| Row {
            name: contender.name.clone(),
            is_fio: matches!(contender.how, How::Fio(_)),
            samples: Vec::new(),
            error: None,
        })
        .collect();
    let mut random = Random::new(plan.seed);
    let bar = progress(plan.rounds * plan.contenders.len(), &plan.title);
    let start = std::time::Instant::now();
    for round in 1..=plan.rounds {
        let mut order: Vec<usize> = (0..plan.contenders.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let (contender, row) = (&plan.contenders[index], &mut rows[index]);
            bar.set_message(contender.name.clone());
            let sample = match row.error {
                Some(_) => None,
                None => match once(contender, subject, plan.state, plan.primer_bytes) {
                    Ok(sample) => Some(sample),
                    Err(error) => {
                        bar.println(format!("{} is out: {error:#}", contender.name));
                        row.error = Some(format!("{error:#}"));
                        None
                    }
                },
            };
            row.samples.push(sample);
            bar.inc(1);
        }
        if bar.is_hidden() {
            let minutes = start.elapsed().as_secs_f64() / 60.0;
            println!("  round {round} of {}, {minutes:.1} min", plan.rounds);
        }
    }
    bar.finish_and_clear();
    Ok(Results {
        title: plan.title.clone(),
        state: plan.state,
        bytes: subject.bytes,
        seed: plan.seed,
        primer_bytes: plan.primer_bytes,
        rows,
    })
}

/// State, primer, run.
fn once(contender: &Contender, subject: &Subject, state: State, primer: u64) -> Result<Sample> {
    match state {
        State::Cold => cache::cool(contender.files(subject), cache::Cooling::DropCaches)?,
        State::Warm => cache::warm(contender.files(subject))?,
    }
    // Programs do not have to be read from storage, whatever was dropped.
    roster::page_in(subject)?;
    roster::prime(primer)?;
    roster::sample(contender, subject)
}

/// fio's best settings here: every combination three times; those within a few per cent of
/// the best take part in the rounds, and the best of them there is the baseline.
pub(crate) fn fio_candidates(
    subject: &Subject,
    seed: u64,
    primer: u64,
) -> Result<Vec<fio::Config>> {
    const TRIES: usize = 3;
    const CLOSE: f64 = 0.95;
    const MOST: usize = 3;
    let huge_too = fio::can_reserve_huge_pages();
    if !huge_too {
        println!("not root: fio runs without huge-page buffers, which may double its rate");
    }
    let configs = fio::configs(huge_too);
    let mut rates = vec![Vec::new(); configs.len()];
    let mut random = Random::new(seed ^ 0xf10);
    let bar = progress(configs.len() * TRIES, "fio's best settings");
    for _ in 0..TRIES {
        let mut order: Vec<usize> = (0..configs.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            bar.set_message(configs[index].to_string());
            match once(
                &Contender::fio(configs[index]),
                subject,
                State::Cold,
                primer,
            ) {
                Ok(sample) => rates[index].push(sample.rate()),
                Err(error) => bar.println(format!("fio, {}: {error:#}", configs[index])),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut ranked: Vec<(f64, fio::Config)> =
        rates.iter().map(|list| median(list)).zip(configs).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = ranked.first().context("no fio settings")?.0;
    anyhow::ensure!(best > 0.0, "fio did not run with any setting");
    println!("fio's settings, median GiB/s of {TRIES} (those marked * take part):");
    let mut chosen = Vec::new();
    for (rate, config) in ranked {
        let takes_part = rate >= best * CLOSE && chosen.len() < MOST;
        println!(
            "  {}{rate:6.2}  {config}",
            if takes_part { "*" } else { " " }
        );
        if takes_part {
            chosen.push(config);
        }
    }
    Ok(chosen)
}

fn progress(steps: usize, title: &str) -> ProgressBar {
    println!("{title}: {steps} runs");
    let template = "  {bar:30} {pos}/{len} {elapsed} left {eta}  {msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style)
}

/// For the head of a report.
pub(crate) fn primer_note(results: &Results) -> String {
    format!("primer {}", repo::mib(results.primer_bytes))
}
