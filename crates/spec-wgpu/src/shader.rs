//! From WGSL files to pipelines.
//!
//! A shader file may begin with lines `//!include NAME`, each replaced by
//! `shaders/include/NAME.wgsl`, once, with that file's own includes before it.
//! That is the one mechanism by which shaders share code.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use spec_core::Result;
use wgpu::{BindGroupLayoutEntry, BindingType, BufferBindingType, ShaderStages};

use crate::Wgpu;
use crate::handle::lock;

/// A WGSL file.
pub(crate) struct Shader {
    /// Its name, which is the operator's.
    pub(crate) name: &'static str,
    /// Its text before includes.
    pub(crate) source: &'static str,
}

/// Names the WGSL file of an operator.
macro_rules! shader {
    ($name:literal) => {
        $crate::shader::Shader {
            name: $name,
            source: include_str!(concat!("../../shaders/", $name, ".wgsl")),
        }
    };
}
pub(crate) use shader;

/// The files that `//!include` finds.
const INCLUDES: &[(&str, &str)] = &[
    ("bound", include_str!("../shaders/include/bound.wgsl")),
    ("exact", include_str!("../shaders/include/exact.wgsl")),
    ("floats", include_str!("../shaders/include/floats.wgsl")),
    ("ngram", include_str!("../shaders/include/ngram.wgsl")),
    ("philox", include_str!("../shaders/include/philox.wgsl")),
    ("probability", include_str!("../shaders/include/probability.wgsl")),
    ("recovery", include_str!("../shaders/include/recovery.wgsl")),
    ("scan", include_str!("../shaders/include/scan.wgsl")),
    ("u64", include_str!("../shaders/include/u64.wgsl")),
];

impl Shader {
    /// The text with its includes.
    pub(crate) fn text(&self) -> String {
        let mut done = Vec::new();
        let mut text = String::new();
        append(self.source, &mut done, &mut text);
        text
    }
}

fn append(source: &'static str, done: &mut Vec<&'static str>, text: &mut String) {
    for line in source.lines() {
        let Some(name) = line.strip_prefix("//!include ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        // An unknown name stays as the comment it is; what it would have
        // declared is then missing, and the shader does not compile.
        let Some((name, included)) = INCLUDES.iter().find(|(n, _)| *n == name.trim()) else {
            continue;
        };
        if !done.contains(name) {
            done.push(name);
            append(included, done, text);
        }
    }
}

/// What a dispatch does with a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// An entry point of a shader with its constants fixed: a pipeline, or two.
#[derive(Clone)]
pub(crate) struct Program(Arc<Inner>);

struct Inner {
    shader: &'static Shader,
    entry: &'static str,
    bindings: Vec<Access>,
    constants: Vec<(&'static str, f64)>,
    exclusive: Pipeline,
    /// Everything bound for writing: for dispatches that read and write the
    /// same buffer. Made when first needed.
    shared: OnceLock<Pipeline>,
}

/// A compiled pipeline with the layout of its bind group.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What makes a program: file, entry point, accesses, constants by their bits.
type Key = (&'static str, &'static str, Vec<Access>, Vec<(&'static str, u64)>);

/// What a handle has compiled so far.
#[derive(Default)]
pub(crate) struct Programs {
    programs: HashMap<Key, Program>,
    modules: HashMap<(&'static str, bool), wgpu::ShaderModule>,
}

impl Program {
    pub(crate) fn name(&self) -> &'static str {
        self.0.entry
    }

    pub(crate) fn bindings(&self) -> &[Access] {
        &self.0.bindings
    }

    /// The pipeline for bindings of distinct buffers, or of shared ones.
    pub(crate) fn pipeline(&self, gpu: &Wgpu, shared: bool) -> &Pipeline {
        if !shared {
            return &self.0.exclusive;
        }
        let inner = &*self.0;
        self.0.shared.get_or_init(|| {
            let bindings = vec![Access::Write; inner.bindings.len()];
            gpu.compile(inner.shader, inner.entry, &bindings, &inner.constants, true)
        })
    }
}

impl Wgpu {
    /// The program at `entry` of `shader`. `bindings` are those of
    /// `@group(0) @binding(1)` and up, as the entry point declares them (those
    /// it does not use may be anything); `constants` set the shader's
    /// `override`s. Compiled once a handle, then cached.
    pub(crate) fn program(
        &self,
        shader: &'static Shader,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Result<Program> {
        let bits = constants.iter().map(|&(name, value)| (name, u64::from(value))).collect();
        let key: Key = (shader.name, entry, bindings.to_vec(), bits);
        if let Some(program) = lock(&self.0.programs).programs.get(&key) {
            return Ok(program.clone());
        }
        let constants: Vec<_> = constants.iter().map(|&(n, v)| (n, f64::from(v))).collect();
        let exclusive =
            self.guarded(|| Ok(self.compile(shader, entry, bindings, &constants, false)))?;
        let program = Program(Arc::new(Inner {
            shader,
            entry,
            bindings: bindings.to_vec(),
            constants,
            exclusive,
            shared: OnceLock::new(),
        }));
        Ok(lock(&self.0.programs).programs.entry(key).or_insert(program).clone())
    }

    fn compile(
        &self,
        shader: &'static Shader,
        entry: &str,
        bindings: &[Access],
        constants: &[(&str, f64)],
        shared: bool,
    ) -> Pipeline {
        let device = &self.0.device;
        let entries: Vec<_> = layout_entries(bindings).collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(shader.name),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(shader.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let module = self.module(shader, shared);
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(shader.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants,
                // Shaders here write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        Pipeline { pipeline, layout }
    }

    fn module(&self, shader: &'static Shader, shared: bool) -> wgpu::ShaderModule {
        let mut programs = lock(&self.0.programs);
        let module = programs.modules.entry((shader.name, shared)).or_insert_with(|| {
            let mut text = shader.text();
            if shared {
                text = text.replace("var<storage, read>", "var<storage, read_write>");
            }
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(shader.name), source };
            let checks =
                wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..Default::default() };
            // SAFETY: bounds and division checks stay on. Only the counters
            // that wgpu adds to loops are left out; the shaders are this
            // crate's own, and each of their loops ends after a number of turns
            // that its parameters bound, whatever the data.
            unsafe { self.0.device.create_shader_module_trusted(descriptor, checks) }
        });
        module.clone()
    }
}

fn layout_entries(bindings: &[Access]) -> impl Iterator<Item = BindGroupLayoutEntry> {
    let entry = |binding: usize, ty: BufferBindingType| BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = bindings.iter().enumerate().map(move |(i, access)| {
        let read_only = *access == Access::Read;
        entry(i + 1, BufferBindingType::Storage { read_only })
    });
    std::iter::once(entry(0, BufferBindingType::Uniform)).chain(storage)
}

#[cfg(test)]
mod tests {
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    /// Every shader parses and validates without an adapter, with nothing but
    /// what WebGPU has, as it is and with everything bound for writing.
    #[test]
    fn shaders_are_valid() {
        for shader in crate::ops::SHADERS.iter().copied().chain([&crate::vectors::SHADER]) {
            let text = shader.text();
            assert!(!text.contains("//!include"), "{}: an include was not found", shader.name);
            for text in [text.replace("<storage, read>", "<storage, read_write>"), text] {
                let module = naga::front::wgsl::parse_str(&text)
                    .unwrap_or_else(|e| panic!("{}: {}", shader.name, e.emit_to_string(&text)));
                Validator::new(ValidationFlags::all(), Capabilities::empty())
                    .validate(&module)
                    .unwrap_or_else(|e| panic!("{}: {}", shader.name, e.emit_to_string(&text)));
            }
        }
    }
}
