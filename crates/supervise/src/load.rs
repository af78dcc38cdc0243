//! Parses the output of a load generator: wrk's summary, or lines of JSON.

use formats::LoadResult;

/// The output of a load command is neither wrk's summary nor JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read the output of the load command: it is neither wrk's nor a line of JSON with \"requests\" (see \
     `rbloat compare --help`); its last line: {last}"
)]
pub(crate) struct LoadError {
    /// The last line of the output.
    pub last: String,
}

/// Parses the output of a load command: the last line of JSON with `requests`, or else wrk's summary
/// (`wrk --latency` for percentiles).
///
/// # Errors
/// If the output is neither.
pub(crate) fn parse_load(output: &str) -> Result<LoadResult, LoadError> {
    let json = output.lines().rev().find_map(|line| serde_json::from_str(line.trim()).ok());
    json.or_else(|| wrk(output)).ok_or_else(|| LoadError {
        last: output.lines().next_back().unwrap_or("(nothing)").chars().take(200).collect(),
    })
}

/// Parses the summary of wrk 4.
fn wrk(output: &str) -> Option<LoadResult> {
    let mut load = LoadResult::default();
    let mut is_wrk = false;
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [count, "requests", "in", ..] => {
                load.requests = count.parse().ok()?;
                is_wrk = true;
            }
            // The columns are average, deviation, maximum, and the share within the deviation.
            ["Latency", _, _, max, _] => load.max_ms = milliseconds(max),
            ["50%", time] => load.p50_ms = milliseconds(time),
            ["99%", time] => load.p99_ms = milliseconds(time),
            ["Requests/sec:", rate] => load.requests_per_second = rate.parse().ok(),
            ["Socket", "errors:", ..] => {
                let counts =
                    words.iter().filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok());
                load.failures += counts.sum::<u64>();
            }
            ["Non-2xx", "or", "3xx", "responses:", count] => {
                load.failures += count.parse::<u64>().ok()?;
            }
            _ => {}
        }
    }
    is_wrk.then_some(load)
}

/// Parses a time as wrk prints it: 851.00us, 12.34ms, 1.20s, 1.00m.
fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 6e4), ("h", 3.6e6)];
    units.iter().find_map(|(unit, factor)| {
        text.strip_suffix(unit)?.parse::<f64>().ok().map(|number| number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRK: &str = "\
Running 10s test @ http://127.0.0.1:9292/
  2 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    12.34ms    3.21ms   1.05s    88.00%
    Req/Sec   321.00     12.00   400.00     70.00%
  Latency Distribution
     50%   11.00ms
     75%   13.00ms
     90%   17.10ms
     99%  851.50us
  116070 requests in 10.00s, 15.00MB read
  Socket errors: connect 0, read 3, write 0, timeout 2
  Non-2xx or 3xx responses: 7
Requests/sec:  11607.00
Transfer/sec:      1.50MB
";

    #[test]
    fn wrk_is_understood() {
        let load = parse_load(WRK).unwrap();
        assert_eq!(load.requests, 116_070);
        assert_eq!(load.failures, 12);
        assert_eq!(load.requests_per_second, Some(11607.0));
        assert_eq!(load.p50_ms, Some(11.0));
        assert_eq!(load.p99_ms, Some(0.8515));
        assert_eq!(load.max_ms, Some(1050.0));
    }

    #[test]
    fn the_last_line_of_json_counts() {
        let load =
            parse_load("hello\n{\"requests\": 5}\n{\"requests\": 9, \"p99_ms\": 1.5}\nbye\n");
        assert_eq!(
            load,
            Ok(LoadResult { requests: 9, p99_ms: Some(1.5), ..LoadResult::default() })
        );
        assert!(parse_load("a\nb\n").unwrap_err().to_string().ends_with("last line: b"));
        assert!(parse_load("").unwrap_err().to_string().ends_with("(nothing)"));
    }
}
