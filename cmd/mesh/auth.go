package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/access"
)

func (a *app) authCommand() *cobra.Command {
	var natsConf bool
	template := &cobra.Command{
		Use: "template --nats-conf", Short: "Print who may do what, for a NATS server of your own",
		Long: `Print the part of a NATS server's configuration that lets in three keys, each with
what it may do: an administrator, the nodes, and callers of the default session,
among them clients without a key. The keys are made in the data folder, in keys/,
where they are not there yet: copy node.nk to the machines of the mesh, and keep
admin.nk for yourself. Nobody else may read them.`,
		Example: "  mesh auth template --nats-conf > mesh.conf     # include mesh.conf in nats-server's configuration\n" +
			"  mesh-agent -s nats://HOST:4222 --nkey node.nk\n  mesh install ./dir -s nats://HOST:4222 --nkey admin.nk",
		Args: nothing,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if !natsConf {
				return usage(cmd, "mesh auth template needs --nats-conf: it is the one form there is")
			}
			return nil
		},
		RunE: runE(func(context.Context, []string) error {
			dir, err := process.DataFolder(a.env, a.set.DataDir)
			if err != nil {
				return usage(nil, "%s", err.Error())
			}
			keys, err := access.OpenKeys(dir)
			if err != nil {
				return err
			}
			config, err := keys.Config(nil)
			if err != nil {
				return err
			}
			fmt.Fprint(a.out, config)
			fmt.Fprintf(a.err, "the keys are in %s\n", access.Folder(dir))
			return nil
		}),
	}
	template.Flags().BoolVar(&natsConf, "nats-conf", false, "in the form of nats-server's configuration file")
	template.Flags().StringVar(&a.set.DataDir, "data-dir", a.set.DataDir, "folder that has keys/ (default $XDG_DATA_HOME/toolmesh)")
	return group("auth", "Keys, and what they may do", template)
}
