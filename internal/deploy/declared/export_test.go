package declared

import (
	"context"

	"github.com/toolmesh/toolmesh/internal/deploy"
)

// Install has an agent install something, as somebody does by hand.
func Install(ctx context.Context, k *Keeper, r deploy.Request) error { return k.install(ctx, r) }
