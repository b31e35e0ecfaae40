# Templates read values of a file instead of a server.
# before: printf '{"config/web/workers": "4", "secret/web": {"password": "x y"}, "nomad/jobs/web": {"token": "t0"}}' > $DIR/kv.json
# args: --kv $DIR/kv.json
# prints: workers=4 token=t0 missing=none

job "web" {
  type = "batch"

  group "web" {
    task "web" {
      driver = "exec"

      template {
        destination = "local/conf"
        data        = <<-EOH
          workers={{ key "config/web/workers" }} {{ with nomadVar "nomad/jobs/web" }}token={{ .token }}{{ end }} missing={{ keyOrDefault "config/web/no" "none" }}
        EOH
      }

      config {
        command = "/bin/cat"
        args    = ["local/conf"]
      }
    }
  }
}
