//! A page as its rows come.

use std::ops::ControlFlow;

use semel_core::store::{Page, PageSize};
use semel_core::{ErrorKind, StoreError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::outbox_rows::{EVENT_COLUMNS, page_row};
use crate::error::classify;

/// Rows behind a full page that are still read.
const BEYOND_MAX: u32 = 8;

/// Takes rows up to a page's bytes. Columns: those of an event, then whether the batch is still its asker's.
pub(super) struct Reading {
    bytes_max: u64,
    bytes: u64,
    mine: bool,
    last: i64,
    page: Page,
    /// Rows behind the page that were read for nothing.
    beyond: u32,
    failed: Option<StoreError>,
}

impl Reading {
    pub(super) fn after(row: i64, size: PageSize) -> Self {
        Self {
            bytes_max: size.bytes,
            bytes: 0,
            mine: true,
            last: row,
            page: Page::default(),
            beyond: 0,
            failed: None,
        }
    }

    /// Breaks some rows behind the end of a full page; the row that does not fit is the next page's first.
    pub(super) fn take(&mut self, row: &PgRow) -> ControlFlow<()> {
        match self.try_take(row) {
            Ok(flow) => flow,
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn try_take(&mut self, row: &PgRow) -> Result<ControlFlow<()>, StoreError> {
        let failed = |error| classify("read_page", error);
        self.mine = row.try_get(EVENT_COLUMNS).map_err(failed)?;
        // Without rows there is one that says only whose the batch is.
        let Some(number) = row.try_get::<Option<i64>, _>(0).map_err(failed)? else {
            return Ok(ControlFlow::Continue(()));
        };
        if self.page.more {
            return Ok(self.beyond());
        }
        // One that came too late would be passed over by the next page.
        if number <= self.last {
            let text = format!("row {number} came after row {}", self.last);
            return Err(StoreError::new(ErrorKind::Corrupt, "read_page", text));
        }
        let found = page_row(row)?;
        let data = found.row.event.data.as_ref().map_or(0, bytes::Bytes::len) as u64;
        if !self.page.rows.is_empty() && self.bytes + data > self.bytes_max {
            self.page.more = true;
            return Ok(self.beyond());
        }
        self.last = number;
        self.bytes += data;
        self.page.rows.push(found);
        Ok(ControlFlow::Continue(()))
    }

    /// A row that is the next page's. A few are read and thrown away: to break off costs a connection.
    fn beyond(&mut self) -> ControlFlow<()> {
        self.beyond += 1;
        if self.beyond > BEYOND_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Whether the batch is its asker's, the bytes of data, and the page.
    pub(super) fn end(self) -> Result<(bool, u64, Page), StoreError> {
        match self.failed {
            None => Ok((self.mine, self.bytes, self.page)),
            Some(error) => Err(error),
        }
    }
}
