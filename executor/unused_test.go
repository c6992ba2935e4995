package executor_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/executor"
)

// While environments that nobody holds are removed all the time, whoever has
// asked for one finds it whole until it is given up.
func TestAnEnvironmentInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	dir := t.TempDir()
	stop := make(chan struct{})
	var remover, users sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				x.RemoveUnused(0)
			}
		}
	})
	for range 4 {
		users.Go(func() {
			for range 25 {
				env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(env.Python); err != nil {
					t.Errorf("an environment in use: %v", err)
				}
				x.Release(env)
			}
		})
	}
	users.Wait()
	close(stop)
	remover.Wait()
	env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x.Release(env)
	x.RemoveUnused(time.Hour)
	if _, err := os.Stat(env.Dir); err != nil {
		t.Errorf("an environment that was in use a moment ago: %v", err)
	}
	x.RemoveUnused(0)
	if _, err := os.Stat(env.Dir); !os.IsNotExist(err) {
		t.Errorf("an environment that nobody uses is there: %v", err)
	}
}
