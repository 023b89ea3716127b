//! An open device: the state that all handles to the device share.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use cudarc::driver::sys;
use spec_core::{Device, DeviceInfo, Error, Result, Status};

use crate::archive::Archive;
use crate::cluster::ActiveClusters;
use crate::cubin;
use crate::driver::{self, Current, check};
use crate::function::{Code, Context, Function, Module};
use crate::limits::Limits;
use crate::shape::{NO_ATTRIBUTES, Shape};

/// A device's primary context and the kernels loaded into it.
pub(crate) struct Gpu {
    /// The context; none where there is no device ([`Cuda::without_device`](crate::Cuda)).
    context: Option<Arc<Context>>,
    info: DeviceInfo,
    limits: Limits,
    /// The loaded modules. The key is the address of a module's archive.
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    /// The loaded kernels, by the address of the archive and the kernel's name. A
    /// second operator that uses a kernel finds it here without asking the driver.
    /// Many threads may read at once; each kernel is written once.
    functions: RwLock<HashMap<usize, HashMap<String, Function>>>,
    active_clusters: ActiveClusters,
}

// SAFETY: the maps have locks of their own; all other fields are set once, in `open`, and may
// be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// The open devices by ordinal, so that handles to one device share its kernels.
static OPEN: Mutex<Vec<(usize, Weak<Gpu>)>> = Mutex::new(Vec::new());

impl Gpu {
    /// The device with this ordinal, shared with every other open handle to the device.
    pub(crate) fn open(index: usize) -> Result<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, gpu)| gpu.strong_count() > 0);
        let known = open.iter().find(|(i, _)| *i == index).and_then(|(_, gpu)| gpu.upgrade());
        if let Some(gpu) = known {
            return Ok(gpu);
        }
        let facts = driver::describe(index)?;
        let device = facts.info.device;
        let mut context = std::ptr::null_mut();
        // SAFETY: the ordinal came from the driver; `context` has room for a handle.
        let got = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, facts.ordinal) };
        check(device, "could not retain its primary context", got)?;
        let context = Arc::new(Context { device, ordinal: facts.ordinal, raw: context });
        let gpu = Arc::new(Gpu::new(Some(context), facts.info, facts.limits));
        open.push((index, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    fn new(context: Option<Arc<Context>>, info: DeviceInfo, limits: Limits) -> Self {
        Gpu {
            context,
            info,
            limits,
            modules: Mutex::default(),
            functions: RwLock::default(),
            active_clusters: ActiveClusters::default(),
        }
    }

    /// A device that is not there.
    pub(crate) fn without_device(limits: Limits) -> Arc<Self> {
        let (major, minor) = limits.compute;
        let info = DeviceInfo {
            device: Device::new("no-cuda", 0),
            name: format!("no device, of compute capability {major}.{minor}"),
            software: false,
            memory: None,
            facts: limits.facts(),
        };
        Arc::new(Gpu::new(None, info, limits))
    }

    /// The error for work on a device that is not there.
    #[cold]
    pub(crate) fn absent(&self) -> Error {
        let words = "there is no device: a handle without one runs nothing";
        Error::device(self.device(), Status::DeviceNotFound, words)
    }

    fn there(&self) -> Result<&Arc<Context>> {
        self.context.as_ref().ok_or_else(|| self.absent())
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.info.device
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The context; null where there is no device.
    pub(crate) fn context(&self) -> sys::CUcontext {
        self.context.as_ref().map_or(std::ptr::null_mut(), |context| context.raw)
    }

    /// Makes this device's context current until the guard is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Current> {
        self.there()?.enter()
    }

    /// How many clusters of this shape the device runs at a time. 0 means that the device cannot
    /// run a cluster of this size, or that `SPEC_CUDA_LIMITS` forbids this size.
    ///
    /// # Errors
    /// Status 1 when the device's context cannot be made current.
    pub(crate) fn active_clusters(&self, function: &Function, shape: Shape) -> Result<u32> {
        if shape.cluster > self.limits.cluster {
            return Ok(0);
        }
        let raw = match function.code {
            Code::Loaded { raw, .. } => raw,
            Code::Unloaded(facts) => {
                let shape = ActiveClusters::rounded(function, shape);
                return Ok(self.limits.active_clusters(facts, shape));
            }
        };
        self.active_clusters.get(function, shape, |shape| {
            let _current = self.enter()?;
            let one = Shape { grid: [shape.cluster, 1], ..shape };
            let mut clusters = 0;
            let mut attributes = NO_ATTRIBUTES;
            let config = one.config(std::ptr::null_mut(), false, &mut attributes);
            // SAFETY: the function is loaded in the current context; all pointers are to locals
            // that outlive the call.
            let code = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, raw, &config) };
            // The device cannot run a cluster of this size.
            if code != sys::CUresult::CUDA_SUCCESS {
                return Ok(0);
            }
            Ok(u32::try_from(clusters).unwrap_or(0))
        })
    }

    /// The kernel `name` of an archive, loaded on first use, and allowed all the
    /// dynamic shared memory that the device has.
    ///
    /// With lazy loading, the driver loads a kernel's code when the function is
    /// requested, so the first launch can be inside a graph capture.
    pub(crate) fn function(&self, archive: &Archive, name: &str) -> Result<Function> {
        let key = archive.bytes.as_ptr().addr();
        let loaded = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.get(&key).and_then(|kernels| kernels.get(name)) {
            return Ok(function.clone());
        }
        drop(loaded);
        let function = self.load(archive, name)?;
        let mut loaded = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        loaded.entry(key).or_default().insert(name.to_owned(), function.clone());
        Ok(function)
    }

    fn load(&self, archive: &Archive, name: &str) -> Result<Function> {
        let missing = || {
            let words = format!("the compiled kernels of {} have no {name}", archive.name);
            Error::device(self.device(), Status::NotImplemented, words)
        };
        if self.context.is_none() {
            let image = archive.image(self.device(), self.limits.compute, true)?;
            let facts = cubin::facts(&image, name).ok_or_else(missing)?;
            return Ok(Function {
                code: Code::Unloaded(facts),
                name: name.into(),
                dynamic: self.limits.shared - facts.shared,
                operator: archive.name,
            });
        }
        let module = self.module(archive)?;
        let symbol = CString::new(name).map_err(|_| missing())?;
        let _current = self.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded and `symbol` ends with a zero.
        match unsafe { sys::cuModuleGetFunction(&mut raw, module.raw, symbol.as_ptr()) } {
            sys::CUresult::CUDA_ERROR_NOT_FOUND => return Err(missing()),
            code => check(self.device(), "could not get a kernel", code)?,
        }
        use sys::CUfunction_attribute_enum as A;
        let mut fixed = 0;
        // SAFETY: the driver just returned the function; `fixed` has room for an int.
        let asked = unsafe {
            sys::cuFuncGetAttribute(&mut fixed, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, raw)
        };
        check(self.device(), "could not ask for a kernel's shared memory", asked)?;
        let dynamic = self.limits.shared as i32 - fixed;
        let attribute = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the driver just returned the function; static and dynamic shared memory
        // together stay within the device's limit.
        let set = unsafe { sys::cuFuncSetAttribute(raw, attribute, dynamic) };
        check(self.device(), "could not allow a kernel its shared memory", set)?;
        // A cluster of more than 8 blocks needs permission: not every device runs such a cluster.
        if self.limits.cluster > 8 {
            let attribute = A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            // SAFETY: the driver just returned the function.
            let set = unsafe { sys::cuFuncSetAttribute(raw, attribute, 1) };
            check(self.device(), "could not allow a kernel its clusters", set)?;
        }
        Ok(Function {
            code: Code::Loaded { raw, _module: module },
            name: name.into(),
            dynamic: dynamic.unsigned_abs(),
            operator: archive.name,
        })
    }

    fn module(&self, archive: &Archive) -> Result<Arc<Module>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = archive.bytes.as_ptr().addr();
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        let context = self.there()?.clone();
        let image = archive.image(self.device(), self.limits.compute, self.limits.sass)?;
        let _current = self.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a whole cubin, or PTX ended by a zero, from our
        // own archive; the driver keeps no pointer to the image.
        let loaded = unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) };
        let doing = format!("could not load the kernels of {}", archive.name);
        check(self.device(), &doing, loaded)?;
        let module = Arc::new(Module { context, raw });
        modules.insert(key, module.clone());
        Ok(module)
    }
}
