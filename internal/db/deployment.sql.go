package db

import (
	"context"

	"github.com/google/uuid"
)

const DeploymentCheck = `-- name: DeploymentCheck :one
select c.id, coalesce(c.belongs_to, '')::text as belongs_to, coalesce(c.problem, '')::text as problem
from samekey.check_deployment($1::text) as c
`

type DeploymentCheckRow struct {
	ID        *uuid.UUID
	BelongsTo string
	Problem   string
}

func (q *Queries) DeploymentCheck(ctx context.Context, deployment string) (DeploymentCheckRow, error) {
	row := q.db.QueryRow(ctx, DeploymentCheck, deployment)
	var i DeploymentCheckRow
	err := row.Scan(&i.ID, &i.BelongsTo, &i.Problem)
	return i, err
}
