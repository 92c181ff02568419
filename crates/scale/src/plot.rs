//! Plots as SVG: one panel below the other, over the seconds of a run.

use std::fmt::Write;

/// One line over the seconds of a run.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) values: Vec<f64>,
    /// How a value of the axis is written.
    pub(crate) label: fn(f64) -> String,
    /// Whether the axis is logarithmic, from this value on.
    pub(crate) log_from: Option<f64>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 20.0;
const BELOW: f64 = 30.0;

/// The panels, with a mark where the fault began.
pub(crate) fn svg(title: &str, fault_at: f64, panels: &[Panel]) -> String {
    let height = TOP + panels.len() as f64 * (HEIGHT + BELOW) + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{LEFT}\" y=\"18\" font-size=\"14\" fill=\"#222\">{title}</text>\n"
    );
    for (n, panel) in panels.iter().enumerate() {
        draw(&mut out, TOP + n as f64 * (HEIGHT + BELOW), fault_at, panel);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, top: f64, fault_at: f64, panel: &Panel) {
    let seconds = panel.values.len().max(2) as f64;
    let highest = panel.values.iter().fold(0.0_f64, |most, value| most.max(*value));
    let plot_top = top + 16.0;
    let plot_height = HEIGHT - 16.0;
    let x = |second: f64| LEFT + (WIDTH - LEFT - RIGHT) * second / seconds;
    let y = |value: f64| {
        let share = match panel.log_from {
            Some(low) => {
                let span = (highest.max(low * 10.0) / low).ln();
                ((value.max(low) / low).ln() / span).clamp(0.0, 1.0)
            }
            None => value / highest.max(1.0),
        };
        plot_top + plot_height * (1.0 - share)
    };
    let ticks: Vec<f64> = match panel.log_from {
        Some(low) => {
            let mut ticks = vec![low];
            while ticks.last().is_some_and(|last| last * 10.0 <= highest.max(low * 10.0)) {
                ticks.push(ticks.last().map_or(low, |last| last * 10.0));
            }
            ticks
        }
        None => vec![0.0, highest / 2.0, highest],
    };
    let right = WIDTH - RIGHT;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#222\">{}</text>", top + 8.0, panel.title);
    for tick in ticks {
        let at = y(tick);
        let label = (panel.label)(tick);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let mark = x(fault_at);
    let bottom = plot_top + plot_height;
    let _ = writeln!(
        out,
        "<line x1=\"{mark:.1}\" x2=\"{mark:.1}\" y1=\"{plot_top:.1}\" y2=\"{bottom:.1}\" stroke=\"#c33\" stroke-dasharray=\"3 3\"/>"
    );
    let mut second = 0.0;
    while second <= seconds {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{second} s</text>",
            x(second),
            bottom + 14.0
        );
        second += 10.0;
    }
    let points: Vec<String> = panel
        .values
        .iter()
        .enumerate()
        .map(|(n, value)| format!("{:.1},{:.1}", x(n as f64 + 0.5), y(*value)))
        .collect();
    let _ = writeln!(
        out,
        "<polyline fill=\"none\" stroke=\"#2563a8\" stroke-width=\"1.6\" points=\"{}\"/>",
        points.join(" ")
    );
}
