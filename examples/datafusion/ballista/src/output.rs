//! The folder of the output: it gets its name when it is complete.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::{DataType, Int32Type, Int64Type, UInt32Type, UInt64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use spec_datafusion::{UNFINISHED, Written};
use tempfile::TempDir;
use url::Url;

/// # Errors
/// If the output exists already, other than as an empty folder.
pub fn absent(name: &Path) -> Result<()> {
    if std::fs::read_dir(name).is_ok_and(|mut files| files.next().is_some()) || name.is_file() {
        return exec_err!("{} exists already", name.display());
    }
    Ok(())
}

/// A folder `.NAME.RANDOM.partial` beside the output. It is removed if the job fails.
pub struct Output {
    partial: TempDir,
    name: PathBuf,
}

impl Output {
    /// # Errors
    /// If the output exists already, other than as an empty folder, or the folder cannot be made.
    pub fn new(name: &Path) -> Result<Self> {
        absent(name)?;
        let name = std::path::absolute(name)?;
        let (Some(folder), Some(last)) = (name.parent(), name.file_name()) else {
            return exec_err!("{} cannot be an output", name.display());
        };
        let prefix = format!(".{}.", last.display());
        let partial =
            tempfile::Builder::new().prefix(&prefix).suffix(".partial").tempdir_in(folder)?;
        // Workers may run as other users of the same group.
        std::fs::set_permissions(partial.path(), PermissionsExt::from_mode(0o775))?;
        File::create(partial.path().join(UNFINISHED))?;
        Ok(Output { partial, name })
    }

    /// The URL of the unfinished folder.
    pub fn url(&self) -> Result<Url> {
        let path = self.partial.path();
        Url::from_directory_path(path)
            .map_err(|()| exec_datafusion_err!("{} cannot be a URL", path.display()))
    }

    /// Removes everything but the files that `written` lists, checks that they are complete, syncs them and gives the
    /// folder its name.
    ///
    /// # Errors
    /// If a file is missing or not complete.
    pub fn publish(self, written: &[Written]) -> Result<()> {
        let folder = self.partial.path();
        for entry in std::fs::read_dir(folder)? {
            // Besides the mark, a worker that was killed may have left the start of a file.
            let entry = entry?;
            if !written.iter().any(|written| entry.file_name() == written.file.as_str()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        for Written { file, distinct, .. } in written {
            let open = File::open(folder.join(file))?;
            open.sync_all()?;
            let rows = SerializedFileReader::new(open)?.metadata().file_metadata().num_rows();
            if rows as u64 != *distinct {
                return exec_err!("{file} has {rows} keys, and a worker has written {distinct}");
            }
        }
        File::open(folder)?.sync_all()?;
        std::fs::rename(folder, &self.name)?;
        // Nothing is left to remove.
        let _ = self.partial.keep();
        Ok(File::open(self.name.parent().unwrap_or(Path::new("/")))?.sync_all()?)
    }
}

/// Writes the keys, and the counts if there are any, of the files of an output, in order.
pub fn print(folder: &Path, sink: &mut impl Write) -> Result<()> {
    let mut files =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    for file in files {
        for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?.build()? {
            let batch = batch?;
            let columns = batch.columns();
            for row in 0..batch.num_rows() {
                for column in columns {
                    match column.data_type() {
                        DataType::Int32 => sink.write_all(
                            &column.as_primitive::<Int32Type>().value(row).to_le_bytes(),
                        ),
                        DataType::UInt32 => sink.write_all(
                            &column.as_primitive::<UInt32Type>().value(row).to_le_bytes(),
                        ),
                        DataType::Int64 => sink.write_all(
                            &column.as_primitive::<Int64Type>().value(row).to_le_bytes(),
                        ),
                        _ => sink.write_all(
                            &column.as_primitive::<UInt64Type>().value(row).to_le_bytes(),
                        ),
                    }?;
                }
            }
        }
    }
    Ok(())
}
