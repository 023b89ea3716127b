//! `spec devices`

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use spec::{DeviceInfo, Listing};
use spec_report::Fact;

use super::{Result, output};

/// What `spec devices` takes.
#[derive(Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists what is there.
pub fn run(options: &Options) -> Result<ExitCode> {
    let listings = spec::devices();
    if options.json {
        output::write_json(&listings.iter().map(json).collect())?;
    } else {
        output::write(&listings.iter().map(text).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(listing: &Listing) -> String {
    match &listing.devices {
        Err(error) => format!("{:<8} none: {error}\n", listing.backend),
        Ok(devices) if devices.is_empty() => format!("{:<8} none found\n", listing.backend),
        Ok(devices) => devices.iter().map(device).collect(),
    }
}

fn device(info: &DeviceInfo) -> String {
    let mut text = format!("{:<8} {}", info.device.to_string(), info.name);
    if info.software {
        text += ", a software renderer";
    }
    if let Some(bytes) = info.memory {
        _ = write!(text, ", {:.1} GiB", bytes as f64 / f64::from(1 << 30));
    }
    text.push('\n');
    for (fact, value) in &info.facts {
        _ = writeln!(text, "{:<8}   {fact}: {value}", "");
    }
    text
}

fn json(listing: &Listing) -> Value {
    let (devices, reason) = match &listing.devices {
        Ok(devices) => (devices.iter().map(device_json).collect(), Value::Null),
        Err(error) => (
            Value::Array(Vec::new()),
            json!({ "status": error.status().code(), "message": error.to_string() }),
        ),
    };
    json!({ "backend": listing.backend, "devices": devices, "error": reason })
}

fn device_json(info: &DeviceInfo) -> Value {
    // A count is a number.
    let facts: Map<String, Value> = info
        .facts
        .iter()
        .map(|(fact, value)| ((*fact).to_owned(), json!(Fact::from(&**value))))
        .collect();
    json!({
        "device": info.device.to_string(),
        "name": info.name,
        "software": info.software,
        "memory": info.memory,
        "facts": facts,
    })
}
