//! Which adapters there are.

use std::sync::LazyLock;

use spec_core::{Device, DeviceInfo, Error, Result, Status};
use wgpu::{Adapter, AdapterInfo, DeviceType, Features, Limits};

/// The name of this backend in a [`Device`].
pub(crate) const BACKEND: &str = "wgpu";

/// Everything that can be opened, hardware before software: `wgpu:0` is the
/// adapter one most likely wants.
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

/// All adapters in the order of their indices.
pub(crate) fn adapters() -> Result<Vec<Adapter>> {
    // One instance for the whole process: only then does wgpu notice a buffer of
    // one device that is used with another.
    static INSTANCE: LazyLock<wgpu::Instance> = LazyLock::new(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.flags = wgpu::InstanceFlags::empty();
        wgpu::Instance::new(descriptor)
    });
    let instance = &*INSTANCE;
    let mut found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    if found.is_empty() {
        let words = "no Vulkan, Metal or DX12 adapter was found; is a graphics driver installed?";
        return Err(Error::device(Device::new(BACKEND, 0), Status::DeviceNotFound, words));
    }
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    Ok(found)
}

/// What a person wants to know of an adapter or an open device.
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
        software: info.device_type == DeviceType::Cpu,
        memory: None,
        facts,
    }
}
