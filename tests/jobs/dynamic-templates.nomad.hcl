# A dynamic block makes a template for each file.
# prints: a=1 b=2

locals {
  files = { a = 1, b = 2 }
}

job "files" {
  type = "batch"

  group "files" {
    task "show" {
      driver = "exec"

      dynamic "template" {
        for_each = local.files

        content {
          data        = "${template.key}=${template.value}"
          destination = "local/conf.d/${template.key}"
        }
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $(cat local/conf.d/a) $(cat local/conf.d/b)"]
      }
    }
  }
}
