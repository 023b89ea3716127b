//! Lists the adapters of this machine.

use std::sync::LazyLock;

use spec_core::{Device, DeviceInfo, Error, Result, Status};
use wgpu::{Adapter, AdapterInfo, DeviceType, Features, Limits};

/// The name of this backend in a [`Device`].
pub(crate) const BACKEND: &str = "wgpu";

/// The device that an error names where the error concerns no particular device.
const FIRST: Device = Device::new(BACKEND, 0);

/// All devices that can be opened, hardware before software renderers, so that `wgpu:0` is the
/// device that most callers want.
///
/// # Errors
/// Status 6 where no Vulkan, Metal or DX12 adapter answers.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let found = adapters()?;
    Ok(found
        .iter()
        .enumerate()
        .map(|(index, a)| describe(index, &a.get_info(), &a.limits(), a.features()))
        .collect())
}

/// The devices of [`devices`] that are not software renderers: the choice for a caller who did not
/// ask for a device by name.
///
/// Where Linux shows no GPU, no driver is started: Mesa's software renderer alone would take
/// 60 MiB of memory for the rest of the process.
///
/// # Errors
/// Status 6 where there is no GPU, with the name of the software renderer if there is one.
pub fn gpus() -> Result<Vec<DeviceInfo>> {
    let none = |words: String| Err(Error::device(FIRST, Status::DeviceNotFound, words));
    if !system_shows_gpu() {
        let words = "this system shows no GPU; a software renderer is taken only by name";
        return none(words.to_owned());
    }
    let mut found = devices()?;
    match found.iter().position(|info| info.software) {
        Some(0) => none(format!(
            "there is no GPU: {} is a software renderer, which is taken only by name",
            found[0].name
        )),
        // `devices` lists hardware first.
        Some(gpus) => {
            found.truncate(gpus);
            Ok(found)
        }
        None => Ok(found),
    }
}

/// Whether the system shows a GPU, found without starting a driver. On Linux, a GPU's driver must
/// have made a device file; on other systems the answer is always yes.
fn system_shows_gpu() -> bool {
    let names = |folder| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let any = |folder| names(folder).any(|entry| is_gpu(&entry.file_name().to_string_lossy()));
    !cfg!(target_os = "linux") || any("/dev") || any("/dev/dri")
}

/// Whether a device file belongs to a GPU. `renderD` is the prefix of the drivers in Linux itself;
/// the other prefixes are those of NVIDIA, Arm, Qualcomm, Imagination, and Windows under Linux.
fn is_gpu(file: &str) -> bool {
    const STARTS: [&str; 8] =
        ["renderD", "nvidia", "nvgpu", "nvhost", "mali", "kgsl", "pvr", "dxg"];
    STARTS.iter().any(|start| file.starts_with(start))
}

/// All adapters in the order of their indices.
pub(crate) fn adapters() -> Result<Vec<Adapter>> {
    // One instance for the whole process: wgpu notices that a buffer of one device is used with
    // another device only where both come from the same instance.
    static INSTANCE: LazyLock<wgpu::Instance> = LazyLock::new(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.flags = wgpu::InstanceFlags::empty();
        wgpu::Instance::new(descriptor)
    });
    let instance = &*INSTANCE;
    let mut found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    if found.is_empty() {
        let words = "no Vulkan, Metal or DX12 adapter was found; is a graphics driver installed?";
        return Err(Error::device(FIRST, Status::DeviceNotFound, words));
    }
    found.sort_by_key(|adapter| {
        let info = adapter.get_info();
        let kind = match info.device_type {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu => 2,
            DeviceType::Other => 3,
            DeviceType::Cpu => 4,
        };
        (is_software(info.device_type, &info.name), kind)
    });
    Ok(found)
}

/// Whether an adapter is a software renderer. Through the interface of a virtual machine, a
/// software renderer can call itself a virtual GPU; then only its name tells.
fn is_software(kind: DeviceType, name: &str) -> bool {
    const NAMES: [&str; 5] =
        ["llvmpipe", "lavapipe", "softpipe", "swiftshader", "microsoft basic render"];
    let name = name.to_lowercase();
    kind == DeviceType::Cpu || NAMES.iter().any(|software| name.contains(software))
}

/// The facts about an adapter or an open device that a user wants to see.
pub(crate) fn describe(
    index: usize,
    info: &AdapterInfo,
    limits: &Limits,
    features: Features,
) -> DeviceInfo {
    let mut offered = Vec::new();
    for (feature, name) in
        [(Features::SUBGROUP, "subgroups"), (Features::TIMESTAMP_QUERY, "timestamps")]
    {
        if features.contains(feature) {
            offered.push(name);
        }
    }
    let optional = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
    let facts = vec![
        ("api", info.backend.to_string()),
        ("driver", format!("{} {}", info.driver, info.driver_info).trim().to_owned()),
        ("workgroup memory", format!("{} KiB", limits.max_compute_workgroup_storage_size / 1024)),
        ("largest binding", format!("{} MiB", limits.max_storage_buffer_binding_size >> 20)),
        ("largest buffer", format!("{} MiB", limits.max_buffer_size >> 20)),
        ("optional features", optional),
    ];
    DeviceInfo {
        device: Device::new(BACKEND, index),
        name: info.name.clone(),
        software: is_software(info.device_type, &info.name),
        memory: None,
        facts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_is_known_by_type_or_name() {
        let virtual_gpu = "Virtio-GPU Venus (llvmpipe (LLVM 15.0.6, 256 bits))";
        assert!(is_software(DeviceType::Cpu, "anything"));
        assert!(is_software(DeviceType::VirtualGpu, virtual_gpu));
        assert!(is_software(DeviceType::Other, "Microsoft Basic Render Driver"));
        assert!(!is_software(DeviceType::VirtualGpu, "Virtio-GPU Venus (AMD Radeon)"));
        assert!(!is_software(DeviceType::DiscreteGpu, "NVIDIA H200"));
    }

    #[test]
    fn device_files_of_gpus() {
        for file in ["renderD128", "nvidia0", "nvidiactl", "mali0", "kgsl-3d0", "dxg"] {
            assert!(is_gpu(file), "{file}");
        }
        // Not GPUs. Servers, for example, have a `card0` for their console: a display without a
        // GPU.
        for file in ["card0", "dri", "null", "tty0", "kvm", "fb0", "by-path"] {
            assert!(!is_gpu(file), "{file}");
        }
    }
}
