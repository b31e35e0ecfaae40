# A template's lines are the task's environment.
# prints: postgres://app@db:5432/app

job "envs" {
  type = "batch"

  group "envs" {
    task "app" {
      driver = "exec"

      template {
        destination = "secrets/app.env"
        env         = true
        data        = <<-EOH
          # The database of {{ env "NOMAD_JOB_NAME" }}
          DATABASE_URL="postgres://app@db:5432/app"
        EOH
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $DATABASE_URL"]
      }
    }
  }
}
