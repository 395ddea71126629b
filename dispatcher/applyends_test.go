package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
)

// ending is an Apply that writes its row and then runs a statement that ends its transaction.
func ending(statement string, past bool, told chan<- error) option {
	return withApply(func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
		if err := recordPayment(ctx, tx, c, o); err != nil {
			return err
		}
		if past { // the wrapper
			_, err := tx.Conn().Exec(ctx, statement)
			return err
		}
		_, err := tx.Exec(ctx, statement)
		select {
		case told <- err:
		default:
		}
		return nil
	})
}

func TestTransactionControlInApplyIsRefused(t *testing.T) {
	for _, statement := range []string{"commit", " COMMIT and chain", ";rollback", "rollback work", "abort", "end", "prepare transaction 'x'"} {
		t.Run(statement, func(t *testing.T) {
			b := setup(t)
			b.applied()
			told := make(chan error, 1)
			b.insert("charge_card")
			b.expect(b.handles(dispatcher.IdempotentWrite, nil, ending(statement, false, told)), delivered)
			if err := wait(b, "the statement was answered", told); err == nil || !strings.Contains(err.Error(), "return instead") {
				t.Errorf("the Apply got %v", err)
			}
			if n := b.count(`select count(*) from payments`); n != 1 {
				t.Errorf("%d payments are written, want 1", n)
			}
		})
	}
	t.Run("in a batch", func(t *testing.T) {
		b := setup(t)
		b.insert("charge_card")
		told := make(chan error, 1)
		b.expect(b.handles(dispatcher.IdempotentWrite, nil, withApply(
			func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
				batch := &pgx.Batch{}
				batch.Queue("select 1")
				batch.Queue("commit")
				told <- tx.SendBatch(ctx, batch).Close()
				return nil
			})), delivered)
		if err := wait(b, "the batch was answered", told); err == nil {
			t.Error("the batch was sent")
		}
	})
}

func TestEveryMethodInApplyRefusesToEndIt(t *testing.T) {
	b := setup(t)
	b.insert("charge_card")
	told := make(chan error, 4)
	b.expect(b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
			_, err := tx.Exec(ctx, "commit")
			told <- err
			rows, err := tx.Query(ctx, "commit")
			rows.Close()
			told <- err
			told <- tx.QueryRow(ctx, "commit").Scan()
			_, err = tx.Prepare(ctx, "ends", "commit")
			told <- err
			return nil
		})), delivered)
	for range cap(told) {
		if err := wait(b, "a statement was answered", told); err == nil || !strings.Contains(err.Error(), "return instead") {
			t.Errorf("the Apply got %v", err)
		}
	}
}

// An Apply may use savepoints.
func TestApplyMayUseSavepoints(t *testing.T) {
	b := setup(t)
	b.applied()
	b.insert("charge_card")
	b.expect(b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, c []byte, o dispatcher.Settled) error {
			for _, sql := range []string{"savepoint a", "create table gone (id int)", "rollback to savepoint a", "savepoint b", "rollback work to b", "release savepoint b"} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			_ = pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
				_, _ = nested.Exec(ctx, "create table gone (id int)")
				return errors.New("not this part")
			})
			return recordPayment(ctx, tx, c, o)
		})), delivered)
	if n := b.count(`select count(*) from payments where to_regclass('gone') is null`); n != 1 {
		t.Errorf("%d payments are written, want 1", n)
	}
}

// The rollback removed the rows, so the intent must not be finished.
func TestApplyThatRollsBackIsRetried(t *testing.T) {
	for _, statement := range []string{
		"rollback", "rollback; begin", "rollback and chain", "select 1; rollback", "rollback; begin; insert into payments values (gen_random_uuid(), 'second')",
	} {
		t.Run(statement, func(t *testing.T) {
			b := setup(t)
			b.applied()
			id := b.insert("charge_card", ordered("order-1"))
			next := b.insert("charge_card", ordered("order-1"))
			b.expect(b.handles(dispatcher.IdempotentWrite, nil, ending(statement, true, nil)), retried)
			b.wantStatus(id, "answered")
			b.wantStatus(next, "blocked")
			if n := b.count(`select count(*) from payments`); n != 0 {
				t.Errorf("%d payments are written, want none", n)
			}
			text := value[string](b, `select error from samekey.outbox_history where intent_id = $1 and event = 'apply'`, id)
			if !strings.Contains(text, "rolled its transaction back") {
				t.Errorf("the history has %q", text)
			}
			b.elapse(backoff)
			b.expect(b.handles(dispatcher.IdempotentWrite, nil, withApply(recordPayment)), dispatcher.Summary{Delivered: 2})
			b.wantCalls(2)
			if n := b.count(`select count(*) from payments`); n != 2 {
				t.Errorf("%d payments are written, want 2", n)
			}
		})
	}
}

// An Apply that commits and then fails is retried. The history warns that its rows are written again.
func TestApplyThatCommitsAndFailsIsRetried(t *testing.T) {
	b := setup(t)
	id := b.insert("charge_card")
	b.expect(b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
			if _, err := tx.Conn().Exec(ctx, "commit"); err != nil {
				return err
			}
			return errors.New("no such order")
		})), retried)
	text := value[string](b, `select error from samekey.outbox_history where intent_id = $1 and event = 'apply'`, id)
	if !strings.Contains(text, "no such order") || !strings.Contains(text, "written again") {
		t.Errorf("the history has %q", text)
	}
}

// The rows are committed, so a second run of the Apply would write them twice.
func TestApplyThatCommitsRunsOnce(t *testing.T) {
	for _, statement := range []string{"commit", "commit; begin", "commit and chain", "select 1; commit"} {
		t.Run(statement, func(t *testing.T) {
			b := setup(t)
			b.applied()
			b.exec(`alter table payments drop constraint payments_pkey`)
			id := b.insert("charge_card", ordered("order-1"))
			next := b.insert("charge_card", ordered("order-1"))
			d := b.handles(dispatcher.IdempotentWrite, nil, ending(statement, true, nil))
			b.expect(d, dispatcher.Summary{Delivered: 2})
			b.elapse(backoff)
			b.expect(d, dispatcher.Summary{})
			b.wantCalls(2)
			b.wantHistory(id, "attempt:delivered:201 apply:delivered:201")
			b.wantHistory(next, "attempt:delivered:201 apply:delivered:201")
			if n := b.count(`select count(*) from payments`); n != 2 {
				t.Errorf("%d payments are written, want 2", n)
			}
			if !strings.Contains(b.logs.String(), "take COMMIT out of it") {
				t.Error("nothing was logged")
			}
		})
	}
}
