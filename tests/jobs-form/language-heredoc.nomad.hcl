job "language-heredoc" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
        echo "$${HOME}"
        %{ for x in ["a", "b"] ~}
        echo ${x}
        %{ endfor ~}
        EOF
      ]
    }
  }
}
}
