job "task-templates" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      template {
        data = "a {{ env \"X\" }}"
        destination = "local/a"
        change_mode = "signal"
        change_signal = "sigusr1"
        perms = "600"
        uid = 0
        gid = 5
        splay = "0s"
        left_delimiter = "[["
        right_delimiter = "]]"
        error_on_missing_key = true
        once = true
        vault_grace = "3s"
        wait {
          min = "2s"
          max = "4s"
        }
      }
      template {
        source = "local/tpl"
        destination = "local/b"
        env = true
        change_mode = "noop"
      }
      template {
        data = "c"
        destination = "local/c"
        change_mode = "script"
        change_script {
          command = "/bin/x"
          args = ["a"]
          timeout = "10s"
          fail_on_error = true
          run_on_first_render = true
        }
      }
      template {
        data = "d"
        destination = "local/d"
      }
      template {
        data = <<EOF
        line 1
        line 2 ${NOMAD_ALLOC_ID}
        EOF
        destination = "local/e"
        change_mode = "script"
        change_script {
          command = "/bin/y"
        }
      }
    }
  }
}
