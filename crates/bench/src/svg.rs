//! The latency distributions as a picture: one panel a workload, percentile against latency, both
//! logarithmic, so that the tail is as visible as the middle.

use crate::plan::Series;
use crate::report::duration;
use crate::spec::{Kind, Traffic};
use crate::stats::Latencies;
use std::fmt::Write;

const PANEL_WIDTH: f64 = 560.0;
const PANEL_HEIGHT: f64 = 380.0;
/// The curves' rectangle within a panel.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 54.0;
const HEADER: f64 = 44.0;
const FOOTER: f64 = 30.0;

/// Percentile axis: x is the number of nines, log10(1 / (1 - quantile)).
const TICKS: [(f64, &str); 7] = [
    (0.0, "0"),
    (std::f64::consts::LOG10_2, "50"),
    (1.0, "90"),
    (2.0, "99"),
    (3.0, "99.9"),
    (4.0, "99.99"),
    (5.0, "99.999"),
];
const MAX_NINES: f64 = 6.0;
const STEPS: u32 = 240;

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "#6b7280",
        Kind::Accelerated => "#0f766e",
        Kind::ServerOnly => "#c2410c",
        Kind::ClientOnly => "#6d28d9",
    }
}

/// A curve: (nines, nanoseconds), rising to the maximum.
type Curve = Vec<(f64, f64)>;

fn curve(latencies: &Latencies) -> Curve {
    if latencies.is_empty() {
        return Vec::new();
    }
    // The last point is the maximum, drawn where one sample in all of them stands.
    let last = (latencies.len() as f64).log10().clamp(0.302, MAX_NINES);
    (0..=STEPS)
        .map(|step| {
            let nines = last * f64::from(step) / f64::from(STEPS);
            let quantile = if step == STEPS { 1.0 } else { 1.0 - 10_f64.powf(-nines) };
            (nines, (latencies.value_at_quantile(quantile) as f64).max(1.0))
        })
        .collect()
}

/// The whole picture; a workload that has no latencies has no panel.
pub(crate) fn picture(all: &[Series]) -> String {
    let panels: Vec<_> = all
        .iter()
        .filter(|series| !matches!(series.workload.spec.traffic, Traffic::Idle))
        .map(|series| {
            let curves: Vec<_> = series
                .workload
                .kinds
                .iter()
                .map(|&kind| (kind, series.latencies(kind)))
                .map(|(kind, latencies)| {
                    (kind, latencies.value_at_quantile(0.5) as f64, curve(&latencies))
                })
                .filter(|(_, _, curve)| !curve.is_empty())
                .collect();
            (series, curves)
        })
        .filter(|(_, curves)| !curves.is_empty())
        .collect();
    let columns = if panels.len() > 1 { 2 } else { 1 };
    let rows = panels.len().div_ceil(columns).max(1);
    let width = PANEL_WIDTH * columns as f64;
    let height = HEADER + PANEL_HEIGHT * rows as f64 + FOOTER;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#1f2937\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"18\" font-weight=\"bold\">netacc bench: latency distributions</text>\n"
    );
    for (index, (series, curves)) in panels.iter().enumerate() {
        let x = PANEL_WIDTH * (index % columns) as f64;
        let y = HEADER + PANEL_HEIGHT * (index / columns) as f64;
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        panel(&mut svg, series, curves);
        svg += "</g>\n";
    }
    let _ = writeln!(
        svg,
        "<text x=\"20\" y=\"{}\" font-size=\"11\" fill=\"#6b7280\">all rounds together; the right end of a curve is its \
         maximum; lower is better</text>\n</svg>",
        height - 12.0
    );
    svg
}

fn panel(svg: &mut String, series: &Series, curves: &[(Kind, f64, Curve)]) {
    let workload = &series.workload;
    let points = || curves.iter().flat_map(|(_, _, curve)| curve);
    let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min).log10().floor();
    let high = points().map(|p| p.1).fold(0.0, f64::max).log10().ceil().max(low + 1.0);
    let most = points().map(|p| p.0).fold(1.0, f64::max);
    let (right, bottom) = (PANEL_WIDTH - RIGHT, PANEL_HEIGHT - BOTTOM);
    let x = |nines: f64| LEFT + nines / most * (right - LEFT);
    let y = |ns: f64| bottom - (ns.log10() - low) / (high - low) * (bottom - TOP);

    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{}</text>",
        escape(&workload.label)
    );
    legend(svg, curves);
    // Latency grid: a line a decade, fainter ones at 2 and 5.
    for decade in low as i32..=high as i32 {
        for step in [1.0, 2.0, 5.0] {
            let ns = 10_f64.powi(decade) * step;
            if ns > 10_f64.powf(high) * 1.001 {
                continue;
            }
            let (at, faint) = (y(ns), step > 1.0);
            let ink = if faint { "#f1f3f5" } else { "#d1d5db" };
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{ink}\"/>"
            );
            if !faint {
                let _ = writeln!(
                    svg,
                    "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 8.0,
                    at + 4.0,
                    decade_label(ns)
                );
            }
        }
    }
    for (nines, text) in TICKS.into_iter().filter(|(nines, _)| *nines <= most + 1e-9) {
        let at = x(nines);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            bottom + 17.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#4b5563\">percentile (%)</text>",
        f64::midpoint(LEFT, right),
        bottom + 36.0
    );
    let middle = f64::midpoint(TOP, bottom);
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{middle:.1}\" text-anchor=\"middle\" fill=\"#4b5563\" transform=\"rotate(-90 16 {middle:.1})\">\
         {}</text>",
        escape(workload.spec.latency_of())
    );
    for (kind, _, curve) in curves {
        let path: Vec<String> =
            curve.iter().map(|&(nines, ns)| format!("{:.1},{:.1}", x(nines), y(ns))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            path.join(" "),
            colour(*kind)
        );
        if let Some(&(nines, ns)) = curve.last() {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{}\"/>",
                x(nines),
                y(ns),
                colour(*kind)
            );
        }
    }
}

/// Names, medians and maxima, in one line below the panel's title.
fn legend(svg: &mut String, curves: &[(Kind, f64, Curve)]) {
    let step = (PANEL_WIDTH - LEFT - RIGHT) / curves.len().max(2) as f64;
    for (index, (kind, p50, curve)) in curves.iter().enumerate() {
        let at = LEFT + step * index as f64;
        let max = curve.last().map_or(f64::NAN, |point| point.1);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"34\" x2=\"{:.1}\" y2=\"34\" stroke=\"{ink}\" stroke-width=\"3\"/>\
             <text x=\"{:.1}\" y=\"38\" fill=\"{ink}\" font-weight=\"bold\">{}</text>\
             <text x=\"{:.1}\" y=\"52\" font-size=\"10\">p50 {}, max {}</text>",
            at + 18.0,
            at + 24.0,
            kind.word(),
            at + 24.0,
            duration(*p50),
            duration(max),
            ink = colour(*kind),
        );
    }
}

/// "1 µs", "10 µs", "100 µs", "1 ms"…
fn decade_label(ns: f64) -> String {
    match ns {
        ns if ns < 999.0 => format!("{ns:.0} ns"),
        ns if ns < 999_000.0 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 999_000_000.0 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Proof;
    use crate::plan::tests::{measured, series};
    use crate::stats;
    use std::time::Duration;

    #[test]
    fn curve_rises_from_minimum_to_maximum() {
        let mut latencies = stats::latencies();
        for n in 1..=10_000 {
            stats::record(&mut latencies, Duration::from_nanos(n * 100));
        }
        let curve = curve(&latencies);
        assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1 && pair[0].0 < pair[1].0));
        assert_eq!(curve.last().unwrap().1, latencies.max() as f64);
        assert!((curve.last().unwrap().0 - 4.0).abs() < 1e-9);
        assert!(super::curve(&stats::latencies()).is_empty());
    }

    #[test]
    fn picture_has_a_panel_for_each_workload_with_figures() {
        let go = || Ok(measured(1.0, 64_000, Proof::NotAsked));
        let all = [
            series("pingpong", vec![(Kind::Plain, 1, go()), (Kind::Accelerated, 1, go())]),
            series("idle", vec![(Kind::Plain, 1, go())]),
            series("bulk", vec![(Kind::Plain, 1, Err("x".into()))]),
        ];
        let svg = picture(&all);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("percentile (%)").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(!picture(&[]).contains("NaN"));
    }
}
