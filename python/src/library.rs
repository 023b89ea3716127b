//! The libraries that arrays come from: how each library hands out its arrays, what its current
//! stream is, and how the library makes new arrays.
//!
//! The Python module `spec_ops._arrays` has the code for torch, cupy and others. This module
//! asks it once per type of array and caches the answer.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use spec::{DType, Device};

use crate::dlpack::{self, Array, ExchangeApi, Refused};

/// How to read and make arrays of a library, or of one type of a library's arrays.
#[derive(Debug)]
pub struct Library {
    name: String,
    exchange: Option<&'static ExchangeApi>,
    /// The function that returns an array as a capsule without ordering it: the array is ready on
    /// the library's own current stream.
    capsule: Option<Py<PyAny>>,
    /// The function that returns an array, ordered before later work of a given stream.
    ordered: Py<PyAny>,
    /// The function that returns the current stream of a device.
    stream: Py<PyAny>,
    /// The function that makes a new array like another array.
    empty: Py<PyAny>,
    /// The function that says how arrays of one shape and element type are made in one call, if
    /// the library has such a way.
    ready: Option<Py<PyAny>>,
    /// The function that makes a result of a new array, if new arrays have another type than
    /// results.
    finish: Option<Py<PyAny>>,
    /// Whether arrays must never be written.
    immutable: bool,
    /// Why arrays of this type are refused, if they are.
    refused: Option<String>,
    /// Methods that tell whether memory does not hold an array's values. Each comes with a text for
    /// what the memory holds instead, and with what to pass instead.
    deferred: Vec<(Py<PyString>, String, String)>,
    /// How the library learns that its arrays were written, if it wants to know.
    changes: Option<Changes>,
}

/// How a library learns that its arrays were written.
#[derive(Debug)]
struct Changes {
    /// The attribute that tells whether `refused` must be asked about an array.
    asked: Py<PyString>,
    /// The function that says why an array must not be written: `None` if it may be, else what it
    /// is, and what to pass instead.
    refused: Py<PyAny>,
    /// The function that marks a tuple of arrays as changed.
    mark: Py<PyAny>,
}

impl Changes {
    fn of(asked: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if asked.is_none() {
            return Ok(None);
        }
        Ok(Some(Changes {
            asked: asked.getattr("asked")?.extract()?,
            refused: asked.getattr("refused")?.unbind(),
            mark: asked.getattr("mark")?.unbind(),
        }))
    }
}

/// Why an array must not be written: what it is, and what to pass instead.
pub type Unwritable = (String, String);

/// The known libraries. The key is the address of a type, which is kept alive.
static LIBRARIES: RwLock<Option<HashMap<usize, &'static Library>>> = RwLock::new(None);

impl Library {
    /// The library of an array's type.
    fn of(array: &Bound<'_, PyAny>) -> Result<&'static Self, Refused> {
        let key = array.get_type_ptr().addr();
        let known = LIBRARIES.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = known.as_ref().and_then(|known| known.get(&key)) {
            return Ok(library);
        }
        drop(known);
        Self::learn(array, key)
    }

    fn learn(array: &Bound<'_, PyAny>, key: usize) -> Result<&'static Self, Refused> {
        let py = array.py();
        let kind = array.get_type();
        let asked = py.import("spec_ops._arrays")?.call_method1("library", (&kind,))?;
        if asked.is_none() {
            return Err(dlpack::no_array(array));
        }
        let unless_none = |name| -> PyResult<Option<Py<PyAny>>> {
            Ok(Some(asked.getattr(name)?.unbind()).filter(|way| !way.is_none(py)))
        };
        let library = Library {
            name: asked.getattr("name")?.extract()?,
            exchange: ExchangeApi::of(&kind),
            capsule: unless_none("capsule")?,
            finish: unless_none("finish")?,
            ordered: asked.getattr("ordered")?.unbind(),
            stream: asked.getattr("stream")?.unbind(),
            empty: asked.getattr("empty")?.unbind(),
            ready: unless_none("ready")?,
            immutable: asked.getattr("immutable")?.extract()?,
            refused: asked.getattr("refused")?.extract()?,
            deferred: asked.getattr("deferred")?.extract()?,
            changes: Changes::of(&asked.getattr("changes")?)?,
        };
        // There is one leaked library per type of array. The type is leaked too, so that its
        // address is never reused for another type.
        std::mem::forget(kind);
        let library: &'static Library = Box::leak(Box::new(library));
        let mut known = LIBRARIES.write().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().insert(key, library);
        Ok(library)
    }

    fn stream(&self, py: Python<'_>, device: Device) -> PyResult<u64> {
        match self.exchange {
            Some(api) => api.stream(py, device.index()),
            None => self.stream.call1(py, (device.index(),))?.extract(py),
        }
    }
}

/// An array that calls make.
#[derive(Debug)]
pub struct Fresh {
    shape: Py<PyAny>,
    dtype: String,
    /// The way that a call's library gave.
    ready: OnceLock<Ready>,
}

impl Fresh {
    /// An array of this shape, a tuple of Python, and this element type.
    pub fn new(shape: Py<PyAny>, dtype: impl Into<String>) -> Self {
        Fresh { shape, dtype: dtype.into(), ready: OnceLock::new() }
    }
}

/// A function and its arguments, which make an array of one shape and element type.
#[derive(Debug)]
struct Ready {
    /// The library whose arrays the function makes.
    library: &'static str,
    make: Py<PyAny>,
    arguments: Py<PyTuple>,
}

/// The arrays of one call, and the stream of the call.
pub struct Arrays<'py> {
    py: Python<'py>,
    /// The first array and its library. This library gives the stream and makes new arrays.
    first: Option<(Bound<'py, PyAny>, &'static Library)>,
    /// The CUDA device, if any array is on one, and the stream there.
    stream: Option<(Device, u64)>,
    /// Objects that must outlive the call.
    kept: Vec<Bound<'py, PyAny>>,
}

impl<'py> Arrays<'py> {
    /// No arrays.
    pub fn new(py: Python<'py>) -> Self {
        Arrays { py, first: None, stream: None, kept: Vec::new() }
    }

    /// The token for the attached Python interpreter.
    pub fn py(&self) -> Python<'py> {
        self.py
    }

    /// The stream of the call, if the arrays are on a CUDA device.
    pub fn stream(&self) -> Option<u64> {
        self.stream.map(|(_, stream)| stream)
    }

    /// Reads an array of the call.
    pub fn read(&mut self, array: &Bound<'py, PyAny>) -> Result<Array, Refused> {
        let library = match &self.first {
            // The arrays of a call mostly have one type.
            Some((first, library)) if first.get_type_ptr() == array.get_type_ptr() => library,
            _ => Library::of(array)?,
        };
        if let Some(what) = &library.refused {
            return Err(Refused::NoArray(what.clone()));
        }
        for (asked, what, pass) in &library.deferred {
            if array.call_method0(asked.bind(self.py))?.is_truthy()? {
                return Err(Refused::Deferred { what: what.clone(), pass: pass.clone() });
            }
        }
        let mut read = match self.unordered(library, array)? {
            Some(read) if self.is_ordered(library, read.device)? => read,
            _ => self.ordered(library, array)?,
        };
        read.read_only |= library.immutable;
        if self.first.is_none() {
            self.first = Some((array.clone(), library));
        }
        Ok(read)
    }

    /// The array without any ordering; `None` if its library cannot hand the array out this way.
    fn unordered(
        &mut self,
        library: &'static Library,
        array: &Bound<'py, PyAny>,
    ) -> Result<Option<Array>, Refused> {
        if let Some(api) = library.exchange {
            return api.read(array).map(Some);
        }
        let Some(way) = &library.capsule else { return Ok(None) };
        // A library that fails here may still hand out the array in another way.
        let Ok(capsule) = way.bind(self.py).call1((array,)) else { return Ok(None) };
        let read = match dlpack::from_capsule(&capsule, None) {
            Err(Refused::Type(_)) => return Ok(None),
            read => read?,
        };
        self.kept.push(capsule);
        Ok(Some(read))
    }

    /// Whether work on the stream of this call comes after the library's own work on its arrays:
    /// this holds if the stream is the library's current stream of the device.
    fn is_ordered(&mut self, library: &'static Library, device: Device) -> Result<bool, Refused> {
        if device == Device::CPU {
            return Ok(true);
        }
        match (self.stream, &self.first) {
            (Some((on, _)), Some((_, first))) if on == device && first.name == library.name => {
                Ok(true)
            }
            (Some((on, stream)), _) if on == device => {
                Ok(library.stream(self.py, device)? == stream)
            }
            // Arrays on two devices are refused later.
            (Some(_), _) => Ok(true),
            (None, _) => {
                self.stream = Some((device, library.stream(self.py, device)?));
                Ok(true)
            }
        }
    }

    /// The array, after its library has ordered its own work before the stream of this call.
    fn ordered(
        &mut self,
        library: &'static Library,
        array: &Bound<'py, PyAny>,
    ) -> Result<Array, Refused> {
        let py = self.py;
        let (kind, index): (i32, i32) = match array.call_method0(intern!(py, "__dlpack_device__")) {
            Ok(device) => device.extract()?,
            // An array that has only `data_ptr` lacks this method.
            Err(_) => (dlpack::CPU, 0),
        };
        let device = dlpack::device(kind, index)?;
        if device != Device::CPU && self.stream.is_none() {
            self.stream = Some((device, library.stream(py, device)?));
        }
        let stream = self.stream.filter(|_| device != Device::CPU).map(|(_, stream)| stream);
        let handed = library.ordered.bind(py).call1((array, stream))?;
        if handed.is_none() {
            return Err(dlpack::no_array(array));
        }
        let read = match handed.cast::<PyTuple>() {
            // An element type that the library has, but cannot describe by DLPack.
            Ok(parts) if parts.len() == 2 => {
                let of = dtype(&parts.get_item(1)?.extract::<String>()?)?;
                dlpack::from_capsule(&parts.get_item(0)?, Some(of))?
            }
            Ok(parts) => {
                let read = described(parts)?;
                self.is_ordered(library, read.device)?;
                read
            }
            Err(_) => dlpack::from_capsule(&handed, None)?,
        };
        self.kept.push(handed);
        Ok(read)
    }

    /// A new array on `device`, made by the first array's library beside the first array. An array
    /// that was made the ready way comes with its description, since it needs none of the checks
    /// of [`read`](Self::read).
    pub fn make(
        &self,
        new: &Fresh,
        device: Device,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Array>)> {
        let py = self.py;
        let Some((first, library)) = &self.first else {
            return Err(crate::error::internal(py, "no array to make another like"));
        };
        if let (Some(api), Some(ready)) = (library.exchange, self.ready(new, first, library)?) {
            let made = ready.make.bind(py).call1(ready.arguments.bind(py))?;
            // The ready way makes arrays on the library's current device, which may have become
            // another one.
            match api.read(&made) {
                Ok(read) if read.device == device => return Ok((made, Some(read))),
                _ => {}
            }
        }
        let made = library.empty.bind(py).call1((first, &new.shape, &new.dtype))?;
        Ok((made, None))
    }

    /// The ready way to make an array beside `first`; the first call asks the library for the way.
    fn ready<'a>(
        &self,
        new: &'a Fresh,
        first: &Bound<'py, PyAny>,
        library: &'static Library,
    ) -> PyResult<Option<&'a Ready>> {
        let Some(ask) = &library.ready else { return Ok(None) };
        if new.ready.get().is_none() {
            let asked = ask.bind(self.py).call1((first, &new.shape, &new.dtype))?;
            let asked = asked.extract::<Option<(Py<PyAny>, Py<PyTuple>)>>()?;
            let Some((make, arguments)) = asked else { return Ok(None) };
            // Two threads may both ask, and get equal answers.
            _ = new.ready.set(Ready { library: &library.name, make, arguments });
        }
        Ok(new.ready.get().filter(|ready| ready.library == library.name))
    }

    /// Tells the libraries of arrays that a call is about to write them. If one of the arrays must
    /// not be written, the result is its index, with the reason.
    pub fn announce(&self, written: &[Bound<'py, PyAny>]) -> PyResult<Option<(usize, Unwritable)>> {
        let py = self.py;
        let mut marked: Vec<(&Library, &Changes, Vec<&Bound<'py, PyAny>>)> = Vec::new();
        for (place, array) in written.iter().enumerate() {
            let library = match &self.first {
                Some((first, library)) if first.get_type_ptr() == array.get_type_ptr() => library,
                // Each array of a call was read, so its library is known.
                _ => match Library::of(array) {
                    Ok(library) => library,
                    Err(_) => continue,
                },
            };
            let Some(changes) = &library.changes else { continue };
            if array.getattr(changes.asked.bind(py))?.is_truthy()? {
                let why = changes.refused.bind(py).call1((array,))?;
                if let Some(why) = why.extract::<Option<Unwritable>>()? {
                    return Ok(Some((place, why)));
                }
            }
            match marked.iter_mut().find(|(known, ..)| known.name == library.name) {
                Some((.., arrays)) => arrays.push(array),
                None => marked.push((library, changes, vec![array])),
            }
        }
        for (_, changes, arrays) in marked {
            changes.mark.bind(py).call1((PyTuple::new(py, arrays)?,))?;
        }
        Ok(None)
    }

    /// The first array, the example for new arrays.
    pub fn first(&self) -> Option<&Bound<'py, PyAny>> {
        self.first.as_ref().map(|(first, _)| first)
    }

    /// The name of the library that makes new arrays: the first array's.
    pub fn maker(&self) -> &'static str {
        self.first.as_ref().map_or("nobody", |(_, library)| &library.name)
    }

    /// Turns a new array, after it was written, into a result of the first array's library.
    pub fn finish(&self, made: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.first.as_ref().and_then(|(_, library)| library.finish.as_ref()) {
            Some(finish) => finish.bind(self.py).call1((made,)),
            None => Ok(made),
        }
    }
}

/// The array of a tuple of address, shape, strides, element type, device kind and device index.
fn described(parts: &Bound<'_, PyTuple>) -> Result<Array, Refused> {
    type Parts = (u64, Vec<i64>, Vec<i64>, String, i32, i32);
    let (address, shape, strides, name, kind, index) = parts.extract::<Parts>()?;
    let desc = dlpack::describe(dtype(&name)?, &shape, &strides)?;
    Ok(Array { desc, address, device: dlpack::device(kind, index)?, read_only: false })
}

/// The element type of a name such as `f32`.
pub fn dtype(name: &str) -> Result<DType, Refused> {
    use DType::{BF16, Bool, F16, F32, I8, I32, I64, U8, U32, U64};
    let known = [F32, F16, BF16, I32, I64, U32, U64, U8, I8, Bool];
    let found = known.into_iter().find(|dtype| dtype.name() == name);
    found.ok_or_else(|| Refused::Type(name.to_owned()))
}
