package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) authCommand() *cobra.Command {
	var natsConf, inJWT bool
	session := string(subjects.DefaultSession)
	template := &cobra.Command{
		Use: "template {--nats-conf | --jwt}", Short: "Print the permissions of keys, for a NATS server of your own",
		Long: `Print the part of a NATS server's configuration that admits three keys, each with
its rights: of an administrator, of the nodes, and of callers of the default session.
Clients without a key have a caller's rights. The server asks agents and routers with
the issuer's key about all other keys, those of sessions. Missing keys are made in keys/
of the data folder: copy node.nk to the machines of the mesh and issuer.nk to two that
you trust as yourself, and keep admin.nk for yourself. No other user may read them.

With --jwt, print the rights of an administrator, a node, a router and a caller of a
session as JSON, in the form of the permissions in a user's JWT. No keys are made.`,
		Example: "  mesh auth template --nats-conf > mesh.conf     # include mesh.conf in nats-server's configuration\n" +
			"  mesh-agent -s nats://HOST:4222 --nkey node.nk --auth-issuer issuer.nk\n  mesh install ./dir -s nats://HOST:4222 --nkey admin.nk\n" +
			"  mesh auth template --jwt --session bob | jq .caller.pub.allow",
		Args: nothing,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if natsConf == inJWT {
				return usage(cmd, "mesh auth template needs --nats-conf or --jwt: the form of the permissions")
			}
			return nil
		},
		RunE: runE(func(context.Context, []string) error {
			if inJWT {
				all, err := access.Template(subjects.SessionID(session))
				if err != nil {
					return usage(nil, "%s", err.Error())
				}
				a.printJSON(all)
				return nil
			}
			dir, err := process.DataFolder(a.env, a.set.DataDir)
			if err != nil {
				return usage(nil, "%s", err.Error())
			}
			keys, err := access.OpenKeys(dir)
			if err != nil {
				return err
			}
			issuer, err := access.OpenIssuer(dir)
			if err != nil {
				return err
			}
			config, err := keys.Config(issuer, access.Node)
			if err != nil {
				return err
			}
			fmt.Fprint(a.out, config)
			fmt.Fprintf(a.err, "the keys are in %s\n", access.Folder(dir))
			return nil
		}),
	}
	template.Flags().BoolVar(&inJWT, "jwt", false, "in the form of the permissions in users' JWTs")
	template.Flags().StringVar(&session, "session", session, "session of the caller, with --jwt")
	template.Flags().BoolVar(&natsConf, "nats-conf", false, "in the form of nats-server's configuration file")
	wordFlag(template, &a.set.DataDir, "data-dir", "folder `DIR` that has keys/ (default $XDG_DATA_HOME/toolmesh)")
	return group("auth", "Keys and their permissions", template)
}
