# A template is a file before the task starts.
# prints: listen 0.0.0.0:8080 as front

job "conf" {
  type = "batch"

  group "front" {
    task "web" {
      driver = "exec"

      env {
        PORT = "8080"
      }

      template {
        destination = "local/web.conf"
        data        = <<-EOH
          listen 0.0.0.0:{{ env "PORT" }} as {{ env "NOMAD_GROUP_NAME" }}
        EOH
      }

      config {
        command = "/bin/cat"
        args    = ["local/web.conf"]
      }
    }
  }
}
