// A plugin made with the real go-plugin, for our host side to launch.
//
// It serves Nomad's protocol version and cookie, and one small service of its own whose messages are
// well-known types, so that nobody needs generated code:
//
//	agentbin.test.Echo/Echo   StringValue -> StringValue  the same text
//	agentbin.test.Echo/Print  StringValue -> Empty        on the plugin's stdout and stderr (the stdio stream)
//	agentbin.test.Echo/Log    StringValue -> Empty        one hclog line on fd 2, with a pair
//	agentbin.test.Echo/Exit   Int32Value  -> Empty        ends the process at once with this status
//	agentbin.test.Echo/Fail   Int32Value  -> Empty        answers with this gRPC status code
//	agentbin.test.Echo/Accept StringValue -> Int32Value   serves itself under a new broker id, which it returns
//	agentbin.test.Echo/Dial   Int32Value  -> StringValue  the health of "host" at the host's broker id
//
// SHUTDOWN_DELAY_MS in its environment makes it linger after it stopped serving. COOKIE_KEY, COOKIE_VALUE and VERSIONS
// (separated by commas) make it a plugin of another family than Nomad's.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type echo struct {
	plugin.NetRPCUnsupportedPlugin
	log      hclog.Logger
	broker   *plugin.GRPCBroker
	register func(*grpc.Server)
}

func (e *echo) GRPCServer(broker *plugin.GRPCBroker, s *grpc.Server) error {
	e.broker = broker
	e.register = func(s *grpc.Server) { s.RegisterService(&service, e) }
	e.register(s)
	return nil
}

func (e *echo) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

func (e *echo) print(text string) {
	fmt.Fprintln(os.Stdout, text)
	fmt.Fprintln(os.Stderr, text)
}

// unary makes a method of one request type out of a plain function.
func unary[In any](name string, do func(*echo, *In) (any, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(In)
			if err := decode(in); err != nil {
				return nil, err
			}
			return do(srv.(*echo), in)
		},
	}
}

var service = grpc.ServiceDesc{
	ServiceName: "agentbin.test.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("Echo", func(_ *echo, in *wrapperspb.StringValue) (any, error) {
			return wrapperspb.String(in.GetValue()), nil
		}),
		unary("Print", func(e *echo, in *wrapperspb.StringValue) (any, error) {
			e.print(in.GetValue())
			return &emptypb.Empty{}, nil
		}),
		unary("Log", func(e *echo, in *wrapperspb.StringValue) (any, error) {
			e.log.Info(in.GetValue(), "answer", 42)
			return &emptypb.Empty{}, nil
		}),
		unary("Fail", func(_ *echo, in *wrapperspb.Int32Value) (any, error) {
			return nil, status.Error(codes.Code(in.GetValue()), "as asked")
		}),
		unary("Accept", func(e *echo, _ *wrapperspb.StringValue) (any, error) {
			id := e.broker.NextId()
			go e.broker.AcceptAndServe(id, func(opts []grpc.ServerOption) *grpc.Server {
				s := grpc.NewServer(opts...)
				e.register(s)
				return s
			})
			return wrapperspb.Int32(int32(id)), nil
		}),
		unary("Dial", func(e *echo, in *wrapperspb.Int32Value) (any, error) {
			conn, err := e.broker.Dial(uint32(in.GetValue()))
			if err != nil {
				return nil, err
			}
			defer conn.Close()
			out, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "host"})
			if err != nil {
				return nil, err
			}
			return wrapperspb.String(out.GetStatus().String()), nil
		}),
		unary("Exit", func(_ *echo, in *wrapperspb.Int32Value) (any, error) {
			os.Exit(int(in.GetValue()))
			return nil, nil
		}),
	},
}

func main() {
	// The logger keeps the real fd 2: go-plugin replaces os.Stderr by the stdio stream later.
	log := hclog.New(&hclog.LoggerOptions{Name: "echo", Level: hclog.Trace, Output: os.Stderr, JSONFormat: true})
	config := &plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins:    plugin.PluginSet{"echo": &echo{log: log}},
		GRPCServer: plugin.DefaultGRPCServer,
		Logger:     log,
	}
	if versions := os.Getenv("VERSIONS"); versions != "" {
		config.HandshakeConfig = plugin.HandshakeConfig{
			MagicCookieKey:   os.Getenv("COOKIE_KEY"),
			MagicCookieValue: os.Getenv("COOKIE_VALUE"),
		}
		config.VersionedPlugins = map[int]plugin.PluginSet{}
		for _, text := range strings.Split(versions, ",") {
			version, err := strconv.Atoi(text)
			if err != nil {
				panic(err)
			}
			config.VersionedPlugins[version] = config.Plugins
		}
		config.Plugins = nil
	}
	plugin.Serve(config)
	if delay, err := strconv.Atoi(os.Getenv("SHUTDOWN_DELAY_MS")); err == nil {
		time.Sleep(time.Duration(delay) * time.Millisecond)
	}
}
