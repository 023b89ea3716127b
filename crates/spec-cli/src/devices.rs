//! `spec devices`

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use spec::{Device, DeviceInfo, Handle, Listing};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

use super::{Result, output};

/// What `spec devices` takes.
#[derive(Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The name of a device for users. The CPU backend only reports the processor's architecture, so
/// for the CPU this is the processor's model, if the system tells it.
pub fn name(info: &DeviceInfo) -> String {
    let model = (info.device == Device::CPU).then(cpu_model).flatten();
    model.unwrap_or_else(|| info.name.clone())
}

/// The processor's model, if the system tells it.
fn cpu_model() -> Option<String> {
    let what = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(what);
    let brand = system.cpus().first()?.brand().trim().to_owned();
    Some(brand).filter(|brand| !brand.is_empty())
}

/// Prints the devices of this machine.
pub fn run(options: &Options) -> Result<ExitCode> {
    let listings = spec::devices();
    // A listed GPU may still fail to open, so `auto` has to open a device to know which it takes.
    let auto = Handle::auto().ok().map(|handle| handle.device());
    if options.json {
        output::write_json(&listings.iter().map(|listing| json(listing, auto)).collect())?;
    } else {
        let text = listings.iter().map(|listing| text(listing, auto));
        output::write(&text.collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(listing: &Listing, auto: Option<Device>) -> String {
    match &listing.devices {
        Err(error) => format!("{:<8} none: {error}\n", listing.backend),
        Ok(devices) if devices.is_empty() => format!("{:<8} none found\n", listing.backend),
        Ok(devices) => devices.iter().map(|info| device(info, auto)).collect(),
    }
}

fn device(info: &DeviceInfo, auto: Option<Device>) -> String {
    let mut text = format!("{:<8} {}", info.device.to_string(), name(info));
    if let Some(bytes) = info.memory {
        _ = write!(text, ", {:.1} GiB", bytes as f64 / f64::from(1 << 30));
    }
    text.push('\n');
    if auto == Some(info.device) {
        _ = writeln!(text, "{:<8}   `--device auto` takes this one", "");
    }
    if info.software {
        _ = writeln!(
            text,
            "{:<8}   a software renderer: only `--device {}` takes it",
            "", info.device
        );
    }
    for (fact, value) in &info.facts {
        _ = writeln!(text, "{:<8}   {fact}: {value}", "");
    }
    text
}

fn json(listing: &Listing, auto: Option<Device>) -> Value {
    let (devices, reason) = match &listing.devices {
        Ok(devices) => (devices.iter().map(|info| device_json(info, auto)).collect(), Value::Null),
        Err(error) => (
            Value::Array(Vec::new()),
            json!({ "status": error.status().code(), "message": error.to_string() }),
        ),
    };
    json!({ "backend": listing.backend, "devices": devices, "error": reason })
}

fn device_json(info: &DeviceInfo, auto: Option<Device>) -> Value {
    // A fact that is a whole number becomes a JSON number.
    let facts: Map<String, Value> = info
        .facts
        .iter()
        .map(|(fact, value)| {
            let value = value.parse::<u64>().map_or_else(|_| json!(value), |count| json!(count));
            ((*fact).to_owned(), value)
        })
        .collect();
    json!({
        "device": info.device.to_string(),
        "name": name(info),
        "auto": auto == Some(info.device),
        "software": info.software,
        "memory": info.memory,
        "facts": facts,
    })
}
