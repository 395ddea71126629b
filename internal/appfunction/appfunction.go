// Package appfunction checks the SQL functions of the application that samekey calls: a worker at its start, and
// processed.Prune. Application code must never run with their rights.
package appfunction

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// name is a function's name with its schema, in the form that needs no quotes.
var name = regexp.MustCompile(`^[a-z_][a-z0-9_$]{0,62}\.[a-z_][a-z0-9_$]{0,62}$`)

// ErrName is the reason against a name that is not a function's.
var ErrName = errors.New("is not the name of an SQL function with its schema, in small letters, such as shop.charge_settled")

// IsName reports whether a text can be the name of a function.
func IsName(text string) bool { return name.MatchString(text) }

// Quoted returns the name for use in a statement.
func Quoted(name string) string {
	schema, function, _ := strings.Cut(name, ".")
	return pgx.Identifier{schema, function}.Sanitize()
}

// Querier is a connection, a transaction or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Function is what the database knows about a function.
type Function struct {
	name string // with its schema

	HasSchema bool
	Exists    bool   // with one argument of type jsonb
	Others    string // functions and procedures of that name with other arguments

	Definer      bool
	SearchPath   *string
	OpenSchemas  []string // of its search_path: everyone may create objects there
	Owner        string
	OwnerIsSuper bool
	OwnerWorks   bool // the owner has the rights of the worker's role
	OwnerOwns    bool // the owner has the rights of the owner of samekey's tables
	Worker       string
	WorkerMay    bool // use the schema, and call it
	EveryoneMay  bool
}

// LookAt reads the catalogs as the current role. A schema that the role may not use is seen too.
func LookAt(ctx context.Context, on Querier, name string) (Function, error) {
	schema, proc, _ := strings.Cut(name, ".")
	rows, err := on.Query(ctx, `
		with path as (
		    select p.oid, regexp_replace(c.setting, '^search_path=', '') as path
		    from pg_catalog.pg_proc p, unnest(p.proconfig) as c (setting)
		    where c.setting like 'search\_path=%'
		)
		select n.oid is not null,
		       p.oid is not null,
		       coalesce((select string_agg(o.oid::regprocedure::text, ', ' order by o.oid::regprocedure::text)
		                 from pg_catalog.pg_proc o where o.pronamespace = n.oid and o.proname = $2 and o.oid is distinct from p.oid), ''),
		       coalesce(p.prosecdef, false),
		       path.path,
		       coalesce((select array_agg(s.nspname::text order by s.nspname) from pg_catalog.pg_namespace s
		                 where s.nspname = any (array(select trim(both ' "' from part) from unnest(string_to_array(path.path, ',')) part))
		                   and exists (select from aclexplode(s.nspacl) a where a.grantee = 0 and a.privilege_type = 'CREATE')), '{}'),
		       coalesce(owner.rolname, ''),
		       coalesce(owner.rolsuper, false),
		       coalesce(pg_has_role(p.proowner, worker.oid, 'usage'), false),
		       coalesce(pg_has_role(p.proowner, (select t.relowner from pg_catalog.pg_class t where t.oid = 'samekey.outbox'::regclass), 'usage'), false),
		       worker.rolname,
		       coalesce(has_schema_privilege(worker.oid, n.oid, 'usage') and has_function_privilege(worker.oid, p.oid, 'execute'), false),
		       coalesce(exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0), false)
		from (select 1) one
		join pg_catalog.pg_roles worker on worker.rolname = current_user
		left join pg_catalog.pg_namespace n on n.nspname = $1
		left join pg_catalog.pg_proc p on p.pronamespace = n.oid and p.proname = $2 and p.prokind = 'f'
		                               and p.pronargs = 1 and p.proargtypes[0] = 'pg_catalog.jsonb'::regtype
		left join path on path.oid = p.oid
		left join pg_catalog.pg_roles owner on owner.oid = p.proowner`, schema, proc)
	if err != nil {
		return Function{}, err
	}
	f := Function{name: name}
	_, err = pgx.ForEachRow(rows, []any{&f.HasSchema, &f.Exists, &f.Others, &f.Definer, &f.SearchPath, &f.OpenSchemas,
		&f.Owner, &f.OwnerIsSuper, &f.OwnerWorks, &f.OwnerOwns, &f.Worker, &f.WorkerMay, &f.EveryoneMay}, func() error { return nil })
	if err == nil && f.Worker == "" {
		err = errors.New("the current role is not in pg_roles")
	}
	return f, err
}

// Mistakes says what is wrong, each with the next step.
func (f Function) Mistakes() (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	schema, _, _ := strings.Cut(f.name, ".")
	call := f.name + "(jsonb)"
	worker := pgx.Identifier{f.Worker}.Sanitize()
	switch {
	case !f.HasSchema:
		add("the schema %q does not exist in this database", schema)
		return out
	case !f.Exists && f.Others != "":
		add("there is no function %s, but %s: give it one argument of type jsonb", call, f.Others)
		return out
	case !f.Exists:
		add("there is no function %s: create it", call)
		return out
	}
	if !f.Definer {
		add("%s would run with the rights of the worker: alter function %s security definer", f.name, call)
	}
	f.checkPath(call, add)
	const owner = "%s belongs to %q, %s: alter function %s owner to a role of the application"
	switch {
	case f.OwnerIsSuper:
		add(owner, f.name, f.Owner, "a superuser", call)
	case f.OwnerWorks:
		add(owner, f.name, f.Owner, "which has the rights of the worker", call)
	case f.OwnerOwns:
		add(owner, f.name, f.Owner, "which has the rights of the owner of samekey's tables", call)
	}
	if !f.WorkerMay {
		add("the worker may not call %s: grant usage on schema %s to %s; grant execute on function %s to %s", f.name, schema, worker, call, worker)
	}
	if f.EveryoneMay {
		add("every role may call %s, and so tell it what never happened: revoke execute on function %s from public", f.name, call)
	}
	return out
}

// checkPath checks that no other role decides which tables and functions the function finds.
func (f Function) checkPath(call string, add func(format string, args ...any)) {
	if f.SearchPath == nil {
		schema, _, _ := strings.Cut(f.name, ".")
		add("%s has no search_path of its own: alter function %s set search_path = %s, pg_temp", f.name, call, schema)
		return
	}
	parts := strings.Split(*f.SearchPath, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	switch pinned := slices.DeleteFunc(slices.Clone(parts), func(part string) bool {
		return part == `"$user"` || part == "$user" || part == "" || part == `""` || part == "pg_temp"
	}); {
	case parts[len(parts)-1] != "pg_temp" || len(pinned)+1 != len(parts):
		if len(pinned) == 0 {
			pinned = []string{"pg_catalog"}
		}
		add("the search_path of %s must name its schemas and end with pg_temp, or another role's table can stand in for one: alter function %s set search_path = %s, pg_temp",
			f.name, call, strings.Join(pinned, ", "))
	case len(f.OpenSchemas) > 0:
		open := strings.Join(f.OpenSchemas, ", ")
		add("the search_path of %s has %s, in which every role may create objects: leave it out, or revoke create on schema %s from public", f.name, open, open)
	}
}
