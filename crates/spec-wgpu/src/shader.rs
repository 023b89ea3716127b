//! Turns WGSL files into pipelines.
//!
//! A shader file may begin with lines `//!include NAME`. Each such line is replaced by the file
//! `shaders/include/NAME.wgsl`, after that file's own includes; a file is included only once. The
//! line `//!include params/NAME` stands for the launch parameters that [`shader!`] names. Includes
//! are the only way in which shaders share code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use wgpu::{BindGroupLayoutEntry, BindingType, BufferBindingType, ShaderStages};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A WGSL file.
pub(crate) struct Shader {
    /// The operator's name.
    pub(crate) name: &'static str,
    /// The text of the file, before its includes are inserted.
    pub(crate) source: &'static str,
    /// The name by which the file includes its launch parameters, and their text.
    pub(crate) params: Include,
}

/// The name of an include, and the text that replaces its line.
pub(crate) type Include = (&'static str, &'static str);

/// The [`Shader`] of an operator's WGSL file. The file with its launch parameters has the same name
/// if no other is given.
macro_rules! shader {
    ($name:literal) => {
        $crate::shader::shader!($name, $name)
    };
    ($name:literal, $params:literal) => {
        $crate::shader::Shader {
            name: $name,
            source: include_str!(concat!("../../shaders/", $name, ".wgsl")),
            params: $crate::shader::params!($params),
        }
    };
}
pub(crate) use shader;

/// The launch parameters with this name.
macro_rules! params {
    ($name:literal) => {
        (concat!("params/", $name), include_str!(concat!("../../shaders/params/", $name, ".wgsl")))
    };
}
pub(crate) use params;

/// The files in `include/`, and the constants that several operators need.
const INCLUDES: &[Include] = &[
    ("adjust_arithmetic", include_str!("../shaders/include/adjust_arithmetic.wgsl")),
    ("adjust_dry", include_str!("../shaders/include/adjust_dry.wgsl")),
    ("adjust_text", include_str!("../shaders/include/adjust_text.wgsl")),
    ("adjust_think", include_str!("../shaders/include/adjust_think.wgsl")),
    ("bound", include_str!("../shaders/include/bound.wgsl")),
    ("exact", include_str!("../shaders/include/exact.wgsl")),
    ("floats", include_str!("../shaders/include/floats.wgsl")),
    ("groups", include_str!("../shaders/include/groups.wgsl")),
    ("integers", include_str!("../shaders/include/integers.wgsl")),
    ("likeliest", include_str!("../shaders/include/likeliest.wgsl")),
    ("ngram", include_str!("../shaders/include/ngram.wgsl")),
    ("ngram_search", include_str!("../shaders/include/ngram_search.wgsl")),
    ("philox", include_str!("../shaders/include/philox.wgsl")),
    ("probability", include_str!("../shaders/include/probability.wgsl")),
    ("race", include_str!("../shaders/include/race.wgsl")),
    ("race_first", include_str!("../shaders/include/race_first.wgsl")),
    ("race_many", include_str!("../shaders/include/race_many.wgsl")),
    ("recovery", include_str!("../shaders/include/recovery.wgsl")),
    ("sampling_columns", include_str!("../shaders/include/sampling_columns.wgsl")),
    ("sampling_cut", include_str!("../shaders/include/sampling_cut.wgsl")),
    ("sampling_draw", include_str!("../shaders/include/sampling_draw.wgsl")),
    ("sampling_levels", include_str!("../shaders/include/sampling_levels.wgsl")),
    ("sampling_row", include_str!("../shaders/include/sampling_row.wgsl")),
    ("scan", include_str!("../shaders/include/scan.wgsl")),
    ("select", include_str!("../shaders/include/select.wgsl")),
    ("suffix_windows", include_str!("../shaders/include/suffix_windows.wgsl")),
    ("team", include_str!("../shaders/include/team.wgsl")),
    ("u64", include_str!("../shaders/include/u64.wgsl")),
    ("unique_buckets", include_str!("../shaders/include/unique_buckets.wgsl")),
    ("unique_digits", include_str!("../shaders/include/unique_digits.wgsl")),
    ("unique_keys_32", include_str!("../shaders/include/unique_keys_32.wgsl")),
    ("unique_keys_64", include_str!("../shaders/include/unique_keys_64.wgsl")),
    ("unique_part", include_str!("../shaders/include/unique_part.wgsl")),
    ("unique_partition", include_str!("../shaders/include/unique_partition.wgsl")),
    ("unique_sort_buckets", include_str!("../shaders/include/unique_sort_buckets.wgsl")),
    ("unique_survey", include_str!("../shaders/include/unique_survey.wgsl")),
    ("unique_whole", include_str!("../shaders/include/unique_whole.wgsl")),
    ("unique_windows", include_str!("../shaders/include/unique_windows.wgsl")),
    ("params/shared", include_str!("../shaders/params/shared.wgsl")),
];

/// Files that replace the include of the same name where subgroups may be used.
const SUBGROUP_INCLUDES: &[Include] =
    &[("team", include_str!("../shaders/include/team_subgroups.wgsl"))];

impl Shader {
    /// The text with its includes inserted, in the form that uses subgroups or in the form that
    /// needs no optional feature. For most shaders, both forms are the same.
    pub(crate) fn text(&self, subgroups: bool) -> String {
        let replaced = if subgroups { SUBGROUP_INCLUDES } else { &[] };
        let includes: Vec<_> =
            replaced.iter().chain([&self.params]).chain(INCLUDES).copied().collect();
        let (mut done, mut text) = (Vec::new(), String::new());
        append(self.source, &includes, &mut done, &mut text);
        text
    }
}

fn append(
    source: &'static str,
    includes: &[Include],
    done: &mut Vec<&'static str>,
    text: &mut String,
) {
    for line in source.lines() {
        let name = line.strip_prefix("//!include ").map(str::trim);
        // The line of an unknown name stays: a test looks for such lines.
        match includes.iter().find(|(known, _)| Some(*known) == name) {
            Some((name, included)) if !done.contains(name) => {
                done.push(name);
                append(included, includes, done, text);
            }
            Some(_) => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// A shader in the form that uses subgroups, or in the one that does not.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) shader: &'static Shader,
    pub(crate) subgroups: bool,
}

impl Form {
    fn key(
        self,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Key {
        (self.shader.name, self.subgroups, entry, bindings.to_vec(), constants.to_vec())
    }
}

/// How a dispatch uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// An entry point of a shader with its constants fixed. It has one pipeline, and a second one for
/// dispatches that read and write the same buffer.
#[derive(Clone)]
pub(crate) struct Program(Arc<Inner>);

struct Inner {
    form: Form,
    entry: &'static str,
    bindings: Vec<Access>,
    constants: Vec<(&'static str, f64)>,
    exclusive: Pipeline,
    /// The pipeline in which everything is bound for writing, for dispatches that read and write
    /// the same buffer. Made when first needed.
    shared: OnceLock<Pipeline>,
}

/// A compiled pipeline with the layout of its bind group.
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// What identifies a program: the file, whether subgroups are used, the entry point, the accesses
/// and the constants.
type Key = (&'static str, bool, &'static str, Vec<Access>, Vec<(&'static str, u32)>);

/// The programs and shader modules that a handle has compiled so far.
#[derive(Default)]
pub(crate) struct Programs {
    programs: HashMap<Key, Program>,
    /// Modules by file, use of subgroups, and whether everything is bound for writing.
    modules: HashMap<(&'static str, bool, bool), wgpu::ShaderModule>,
}

impl Programs {
    /// The number of compiled programs.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.programs.len()
    }
}

impl Program {
    pub(crate) fn name(&self) -> &'static str {
        self.0.entry
    }

    /// The names of the shader and of the entry point, as `topk_router.main`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}.{}", self.0.form.shader.name, self.0.entry)
    }

    /// The use of subgroups and the constants of the pipeline, as `, subgroups, LANES = 8`.
    pub(crate) fn variant(&self) -> String {
        let subgroups = if self.0.form.subgroups { ", subgroups" } else { "" };
        let constants = self.0.constants.iter().map(|(name, value)| format!(", {name} = {value}"));
        subgroups.to_owned() + &constants.collect::<String>()
    }

    pub(crate) fn bindings(&self) -> &[Access] {
        &self.0.bindings
    }

    /// The pipeline of this program. With `shared`, the pipeline for dispatches that read and write
    /// the same buffer, which `device` compiles when it is first needed.
    pub(crate) fn pipeline(
        &self,
        device: &wgpu::Device,
        programs: &Mutex<Programs>,
        shared: bool,
    ) -> &Pipeline {
        if !shared {
            return &self.0.exclusive;
        }
        let inner = &*self.0;
        self.0.shared.get_or_init(|| {
            let bindings = vec![Access::Write; inner.bindings.len()];
            let Inner { form, entry, constants, .. } = inner;
            Self::compile(device, programs, *form, entry, &bindings, constants, true)
        })
    }

    /// The compiled program with these properties, if there is one.
    pub(crate) fn known(
        programs: &Mutex<Programs>,
        form: Form,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Option<Self> {
        lock(programs).programs.get(&form.key(entry, bindings, constants)).cloned()
    }

    /// Compiles a program. Whoever has seen that the device reports no error keeps it in `programs`
    /// by [`keep`](Self::keep).
    pub(crate) fn new(
        device: &wgpu::Device,
        programs: &Mutex<Programs>,
        form: Form,
        entry: &'static str,
        bindings: &[Access],
        constants: &[(&'static str, u32)],
    ) -> Self {
        let constants: Vec<_> = constants.iter().map(|&(n, v)| (n, f64::from(v))).collect();
        Program(Arc::new(Inner {
            form,
            entry,
            bindings: bindings.to_vec(),
            exclusive: Self::compile(device, programs, form, entry, bindings, &constants, false),
            constants,
            shared: OnceLock::new(),
        }))
    }

    /// The program, or the equal one that another thread has kept first.
    pub(crate) fn keep(
        self,
        programs: &Mutex<Programs>,
        constants: &[(&'static str, u32)],
    ) -> Self {
        let key = self.0.form.key(self.0.entry, &self.0.bindings, constants);
        lock(programs).programs.entry(key).or_insert(self).clone()
    }

    fn compile(
        device: &wgpu::Device,
        programs: &Mutex<Programs>,
        form: Form,
        entry: &str,
        bindings: &[Access],
        constants: &[(&str, f64)],
        shared: bool,
    ) -> Pipeline {
        let shader = form.shader;
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
        let module = Self::module(device, programs, form, shared);
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(shader.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants,
                // The shaders of this crate write workgroup memory before they read it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        Pipeline { pipeline, layout }
    }

    fn module(
        device: &wgpu::Device,
        programs: &Mutex<Programs>,
        form: Form,
        shared: bool,
    ) -> wgpu::ShaderModule {
        let Form { shader, subgroups } = form;
        let mut programs = lock(programs);
        let key = (shader.name, subgroups, shared);
        let module = programs.modules.entry(key).or_insert_with(|| {
            let mut text = shader.text(subgroups);
            if shared {
                text = text.replace("var<storage, read>", "var<storage, read_write>");
            }
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(shader.name), source };
            let checks =
                wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..Default::default() };
            // SAFETY: bounds checks and division checks stay on. Only the counters that wgpu adds
            // to loops are left out. The shaders are this crate's own, and the parameters bound the
            // number of iterations of each loop, whatever the data.
            unsafe { device.create_shader_module_trusted(descriptor, checks) }
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
    use naga::Module;
    use naga::valid::{
        Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator,
    };

    /// Every shader parses and validates without an adapter: with and without subgroups, which are
    /// the only optional feature, and with everything bound for writing. With the Cargo feature
    /// `translate`, every entry point also translates to the shader languages of Vulkan, Metal and
    /// DX12.
    #[test]
    fn shaders_are_valid() {
        let shaders = crate::ops::shaders().chain([&crate::time::COPY_SHADER]);
        for (shader, subgroups) in shaders.flat_map(|s| [(s, false), (s, true)]) {
            let text = shader.text(subgroups);
            assert!(!text.contains("//!include"), "{}: an include was not found", shader.name);
            let optional = if subgroups { Capabilities::SUBGROUP } else { Capabilities::empty() };
            for text in [text.replace("<storage, read>", "<storage, read_write>"), text] {
                let words = |e: String| format!("{}, subgroups {subgroups}: {e}", shader.name);
                let module = naga::front::wgsl::parse_str(&text)
                    .unwrap_or_else(|e| panic!("{}", words(e.emit_to_string(&text))));
                let mut validator = Validator::new(ValidationFlags::all(), optional);
                validator.subgroup_stages(ShaderStages::COMPUTE);
                validator.subgroup_operations(SubgroupOperationSet::all());
                let info = validator
                    .validate(&module)
                    .unwrap_or_else(|e| panic!("{}", words(e.emit_to_string(&text))));
                for entry in &module.entry_points {
                    translate(&module, &info, &entry.name)
                        .unwrap_or_else(|e| panic!("{}: {}", entry.name, words(e)));
                }
            }
        }
    }

    #[cfg(not(feature = "translate"))]
    fn translate(_: &Module, _: &ModuleInfo, _: &str) -> Result<(), String> {
        Ok(())
    }

    /// Translates an entry point to the shader languages of Vulkan, Metal and DX12.
    #[cfg(feature = "translate")]
    fn translate(module: &Module, info: &ModuleInfo, name: &str) -> Result<(), String> {
        use naga::ShaderStage;
        use naga::back::{hlsl, msl, pipeline_constants, spv};
        let entry = (ShaderStage::Compute, name);
        let constants = Default::default();
        let (module, info) =
            pipeline_constants::process_overrides(module, info, Some(entry), &constants)
                .map_err(|e| format!("constants: {e}"))?;
        let entry = || Some((ShaderStage::Compute, name.to_owned()));
        let mut options = msl::Options { lang_version: (2, 4), ..Default::default() };
        options.zero_initialize_workgroup_memory = false;
        let pipeline = msl::PipelineOptions { entry_point: entry(), ..Default::default() };
        msl::write_string(&module, &info, &options, &pipeline).map_err(|e| format!("MSL: {e}"))?;
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_0,
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        };
        let pipeline = hlsl::PipelineOptions { entry_point: entry() };
        hlsl::Writer::new(&mut String::new(), &options, &pipeline)
            .write(&module, &info, None)
            .map_err(|e| format!("HLSL: {e}"))?;
        let options = spv::Options { lang_version: (1, 3), ..Default::default() };
        let pipeline = spv::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: name.to_owned(),
        };
        spv::write_vec(&module, &info, &options, Some(&pipeline))
            .map(drop)
            .map_err(|e| format!("SPIR-V: {e}"))
    }
}
