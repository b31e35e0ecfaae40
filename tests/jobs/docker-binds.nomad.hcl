# Files of the task's directory are mounted where the image looks for them.
# prints: server { listen 80 }

job "binds" {
  type = "batch"

  group "binds" {
    task "binds" {
      driver = "docker"

      template {
        data        = "server { listen 80 }"
        destination = "local/default.conf"
      }

      config {
        image   = "busybox:1"
        command = "cat"
        args    = ["/etc/nginx/conf.d/default.conf"]

        mount {
          type     = "bind"
          source   = "local/default.conf"
          target   = "/etc/nginx/conf.d/default.conf"
          readonly = true
        }
      }
    }
  }
}
