//! Runs contenders in turn and compares them.

use std::pin::Pin;
use std::time::{Duration, Instant};

/// What one run did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) done: u64,
    pub(crate) elapsed: Duration,
    /// Microseconds of each operation, where it is a caller that waits.
    pub(crate) latencies: Vec<u32>,
    /// Processor time, of whatever the table names.
    pub(crate) processors: Vec<Duration>,
}

impl Sample {
    fn per_second(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64()
    }

    /// Adds an operation that began at `from` and has just ended.
    pub(crate) fn record(&mut self, from: Instant, done: u64) {
        self.done += done;
        self.latencies
            .push(u32::try_from(from.elapsed().as_micros()).unwrap_or(u32::MAX));
    }

    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.done += other.done;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latencies.extend(other.latencies);
        self.processors.extend(other.processors);
        self
    }
}

type Run<'a> = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Sample> + 'a>> + 'a>;

/// One table: the same work done in several ways. The first contender is the limit that the others are compared with.
pub(crate) struct Table<'a> {
    title: String,
    unit: &'static str,
    processors: &'static [&'static str],
    contenders: Vec<(String, Run<'a>)>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(title: impl Into<String>, unit: &'static str) -> Self {
        Self {
            title: title.into(),
            unit,
            processors: &[],
            contenders: Vec::new(),
        }
    }

    /// Shows the processor time that each unit took of these, as the samples have it.
    pub(crate) fn processors(mut self, names: &'static [&'static str]) -> Self {
        self.processors = names;
        self
    }

    pub(crate) fn contender<F>(mut self, name: impl Into<String>, mut run: impl FnMut() -> F + 'a) -> Self
    where
        F: Future<Output = Sample> + 'a,
    {
        let run: Run<'a> = Box::new(move || Box::pin(run()));
        self.contenders.push((name.into(), run));
        self
    }

    /// Keeps the contenders whose name, behind the title of the table, holds one of these texts (`one|other`).
    pub(crate) fn only(mut self, texts: Option<&str>) -> Self {
        let title = &self.title;
        self.contenders.retain(|(name, _)| {
            let name = format!("{title}: {name}");
            texts.is_none_or(|texts| texts.split('|').any(|text| name.contains(text)))
        });
        self
    }

    /// Measures and prints.
    pub(crate) async fn measure(mut self, rounds: usize) {
        let count = self.contenders.len();
        if count == 0 {
            return;
        }
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); count];
        for round in 0..rounds {
            for place in 0..count {
                // Every second round runs backwards, so that nobody always comes after the same neighbour.
                let index = if round % 2 == 0 { place } else { count - 1 - place };
                samples[index].push((self.contenders[index].1)().await);
            }
        }
        println!("\n### {}\n", self.title);
        print!(
            "| | {}/s, median | least to most | of the limit | p50 ms | p99 ms |",
            self.unit
        );
        for name in self.processors {
            print!(" µs of {name} |");
        }
        let mut columns = self.processors.len();
        if columns > 0 {
            print!(" the limit's sum of it |");
            columns += 1;
        }
        println!(
            "\n| --- | ---: | ---: | ---: | ---: | ---: |{}",
            " ---: |".repeat(columns)
        );
        let limit = (0..self.processors.len()).filter_map(|place| median_micros(&samples[0], place));
        let limit: f64 = limit.sum();
        for (index, (name, _)) in self.contenders.iter().enumerate() {
            let mut rates: Vec<f64> = samples[index].iter().map(Sample::per_second).collect();
            let mut ratios: Vec<f64> = rates
                .iter()
                .zip(&samples[0])
                .map(|(rate, limit)| rate / limit.per_second())
                .collect();
            let mut latencies: Vec<u32> = samples[index]
                .iter()
                .flat_map(|sample| sample.latencies.iter().copied())
                .collect();
            rates.sort_by(f64::total_cmp);
            ratios.sort_by(f64::total_cmp);
            latencies.sort_unstable();
            print!(
                "| {name} | {} | {} to {} | {:.2} | {} | {} |",
                thousands(rates[rates.len() / 2]),
                thousands(rates[0]),
                thousands(rates[rates.len() - 1]),
                ratios[ratios.len() / 2],
                percentile(&latencies, 50),
                percentile(&latencies, 99),
            );
            let micros = (0..self.processors.len()).map(|place| median_micros(&samples[index], place));
            let micros: Option<Vec<f64>> = micros.collect();
            for micros in micros.iter().flatten() {
                print!(" {micros:.1} |");
            }
            match micros {
                Some(micros) if !micros.is_empty() => print!(" {:.2} |", limit / micros.iter().sum::<f64>()),
                Some(_) => {}
                None => print!("{}", " – |".repeat(columns)),
            }
            println!();
        }
    }
}

pub(crate) fn thousands(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Runs what takes processor time, and notes how much of it each of those took that `processors` reads.
pub(crate) async fn timed<const N: usize>(
    processors: fn() -> [Duration; N],
    run: impl Future<Output = Sample>,
) -> Sample {
    let before = processors();
    let sample = run.await;
    let after = processors().into_iter().zip(before);
    Sample {
        processors: after
            .map(|(after, before)| after.saturating_sub(before))
            .collect(),
        ..sample
    }
}

/// Processor time of one unit at this place, the median of the samples.
fn median_micros(samples: &[Sample], place: usize) -> Option<f64> {
    let mut micros: Vec<f64> = samples
        .iter()
        .filter_map(|sample| Some(sample.processors.get(place)?.as_secs_f64() * 1e6 / sample.done as f64))
        .collect();
    micros.sort_by(f64::total_cmp);
    micros.get(micros.len() / 2).copied()
}

fn percentile(sorted: &[u32], percent: usize) -> String {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or_else(
        || "–".to_owned(),
        |micros| format!("{:.2}", f64::from(*micros) / 1_000.0),
    )
}

/// Lets `callers` repeat an operation until the time is up; each of them waits for one before it begins the next.
/// `operation` gets the caller's number and says how much it did.
pub(crate) async fn callers<F, O>(callers: usize, run: Duration, operation: O) -> Sample
where
    F: Future<Output = u64> + Send + 'static,
    O: Fn(usize) -> F + Clone + Send + 'static,
{
    let begun = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let operation = operation.clone();
            tokio::spawn(repeat(begun, run, move || operation(caller)))
        })
        .collect();
    let mut all = Sample::default();
    for task in tasks {
        all = all.merge(task.await.unwrap());
    }
    all
}

async fn repeat<F: Future<Output = u64>>(begun: Instant, run: Duration, operation: impl Fn() -> F) -> Sample {
    let mut sample = Sample::default();
    while begun.elapsed() < run {
        let from = Instant::now();
        let done = operation().await;
        sample.record(from, done);
    }
    sample.elapsed = begun.elapsed();
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_readable_and_percentiles_are_those_of_the_sorted_list() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        let latencies: Vec<u32> = (1..=100).map(|ms| ms * 1_000).collect();
        assert_eq!(percentile(&latencies, 99), "100.00");
        assert_eq!(percentile(&latencies, 50), "51.00");
        assert_eq!(percentile(&[], 50), "–");
    }
}
