//! Pages of the outbox, read on a connection of our own: the driver's thread hands every row over by itself, with every value
//! copied once more ([decision 0064](../../../../docs/decisions/0064-pages-on-sqlite-are-read-in-one-go.md)).

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};
use semel_core::StoreError;
use semel_core::relay::{Cursor, ShardLease};
use semel_core::store::{Guarded, Page, PageSize};

use super::outbox_rows::{EVENT, id_of, page_row};
use crate::db::Sqlite;
use crate::error::direct_failed;

impl Sqlite {
    /// The shard and its rows are of one moment.
    pub(super) async fn page(
        &self,
        lease: &ShardLease,
        cursor: &Cursor,
        after: i64,
        size: PageSize,
    ) -> Result<Guarded<Page>, StoreError> {
        let (lease, batch_no) = (lease.clone(), cursor.batch_no);
        let open = cursor.open.as_ref().map(id_of).transpose()?;
        let after = after.max(id_of(&cursor.prev)?);
        self.read_directly("read_page", move |db| {
            if let Some(refused) = refused(db, &lease, batch_no, open)? {
                return Ok(refused);
            }
            match open {
                Some(open) => Ok(Guarded::Done(rows(db, &lease, after, open, size)?)),
                None => Ok(Guarded::Done(Page::default())),
            }
        })
        .await
    }
}

/// Unless the shard is still this owner's, with this batch open.
fn refused(
    db: &Connection,
    lease: &ShardLease,
    batch_no: i64,
    open: Option<i64>,
) -> Result<Option<Guarded<Page>>, StoreError> {
    let failed = |error| direct_failed("read_page", error);
    let sql = "SELECT epoch, nonce, batch_no, open FROM semel_outbox_shard WHERE stream = ?1 AND shard = ?2";
    let refused = db
        .prepare_cached(sql)
        .map_err(failed)?
        .query_row(params![lease.shard.stream, lease.shard.index], |row| {
            let nonce: Option<Vec<u8>> = row.get(1)?;
            let mine = row.get::<_, i64>(0)? == lease.epoch.0 && nonce.as_deref() == Some(&lease.nonce.0[..]);
            let same = row.get::<_, i64>(2)? == batch_no && row.get::<_, Option<i64>>(3)? == open;
            Ok(match (mine, same) {
                (false, _) => Some(Guarded::Lost),
                (true, false) => Some(Guarded::Reload),
                (true, true) => None,
            })
        })
        .optional()
        .map_err(failed)?;
    Ok(refused.unwrap_or(Some(Guarded::Lost)))
}

fn rows(
    db: &Connection,
    lease: &ShardLease,
    after: i64,
    upto: i64,
    size: PageSize,
) -> Result<Page, StoreError> {
    let failed = |error| direct_failed("read_page", error);
    let sql = format!(
        "SELECT {EVENT} FROM semel_outbox WHERE id > ?1 AND id <= ?2 AND stream = ?3 AND slot BETWEEN ?4 AND ?5
         ORDER BY id LIMIT ?6"
    );
    let mut statement = db.prepare_cached(&sql).map_err(failed)?;
    let (first, last) = (lease.slots.first, lease.slots.last);
    let of = params![after, upto, lease.shard.stream, first, last, size.rows];
    let mut found = statement.query(of).map_err(failed)?;
    let mut page = Page::default();
    let mut bytes = 0;
    while let Some(row) = found.next().map_err(failed)? {
        let row = page_row(row)?;
        bytes += row.row.event.data.as_ref().map_or(0, Bytes::len) as u64;
        if bytes > size.bytes && !page.rows.is_empty() {
            page.more = true;
            break;
        }
        page.rows.push(row);
    }
    page.more |= page.rows.len() >= size.rows as usize;
    Ok(page)
}
