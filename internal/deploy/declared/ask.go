package declared

import (
	"context"
	"math/rand/v2"

	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
)

// install has an index installed, by a node that it is for.
func (k *Keeper) install(ctx context.Context, r deploy.Request) error {
	err := k.ask(ctx, "", "install", r)
	if nodes := deploy.Elsewhere(err); len(nodes) > 0 {
		err = k.ask(ctx, nodes[rand.IntN(len(nodes))], "install", r)
	}
	return err
}

// ask makes an administrative request, of any agent or of a node, and waits until it is
// done. Its errors are those of [deploy.Ask].
func (k *Keeper) ask(ctx context.Context, node subjects.NodeID, verb string, body any) error {
	for _, err := range deploy.Ask(ctx, k.bus, node, verb, body, nil) {
		if err != nil {
			return err
		}
	}
	return nil
}
